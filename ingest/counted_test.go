package ingest

import (
	"testing"

	"eaglebatch/store"
)

// counted holds the row of a samples generation to what its datasets have, also
// while it is being built; building says that one is, with samples in it.
func counted(t *testing.T, ws *store.Workspace) (building bool) {
	t.Helper()
	err := ws.View(func(r store.Reader) error {
		rows, err := r.Datasets()
		if err != nil {
			return err
		}
		gens, err := r.Generations()
		for _, g := range gens {
			n, tokens := int64(0), int64(0)
			for _, d := range rows {
				if d.SamplesGen == g.ID {
					n, tokens = n+d.Accepted, tokens+d.Tokens
				}
			}
			if g.Samples != n || g.Tokens != tokens {
				t.Errorf("%s generation %d counts %d samples, %d tokens; its datasets %d and %d", g.State, g.ID, g.Samples, g.Tokens, n, tokens)
			}
			building = building || g.State == store.GenBuilding && n > 0
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return building
}
