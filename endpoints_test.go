package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"eaglebatch/extract/backend/enginetest"
)

// vllmSite is a site whose engines are servers.
func vllmSite(t *testing.T, hs, patience string, urls ...string) site {
	t.Helper()
	s := newSite(t, t.TempDir())
	s.configure(t, strings.Replace(drillConfig, "{backend: synthetic, ",
		fmt.Sprintf("{backend: vllm, endpoints: [%s], shared_dir: %s, min_top1: 0, patience: %s, ", strings.Join(urls, ", "), hs, patience), 1))
	return s
}

// TestEndpointsOfWhichSomeFail: whichever of several servers is down or fails at
// everything, the others do the work, and the run, doctor and the end of the log
// name it; where none is well the run ends with 20 and leaves nothing out.
func TestEndpointsOfWhichSomeFail(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	down := "http://" + free.Addr().String()
	must(t, free.Close())
	hs := t.TempDir()
	server := func(fault string) string {
		v := &enginetest.VLLM{Dir: hs, Layers: []int{2, 4, 8}, Hidden: 64, Vocab: 1000, MaxLen: 2049, Always: fault}
		t.Cleanup(v.Close)
		return v.Start()
	}
	failing, sound := server(enginetest.FaultNaN), server("")

	s := vllmSite(t, hs, "1h", down, failing, sound)
	r := s.ok(t, "run")
	for _, want := range []string{
		"preflight: vllm: " + down, "goes on without it",
		"slot 0 (" + down + ") was of no use at the end", "slot 1 (" + failing + ") was of no use at the end",
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("%q wanted: %v", want, r)
		}
	}
	s.ok(t, "check", "--full")
	if r = s.run(t, nil, "doctor"); r.code != 1 || !strings.Contains(r.out, down) {
		t.Errorf("doctor: %v", r)
	}

	s = vllmSite(t, hs, "2s", failing)
	r = s.run(t, nil, "run")
	for _, want := range []string{"slot 0 (" + failing + "): nothing came for", "samples in a row failed", "none of them is left out", "not finite", "hint: "} {
		if r.code != 20 || !strings.Contains(r.err, want) {
			t.Errorf("20 and %q wanted: %v", want, r)
		}
	}
	s.edit(t, failing, sound)
	s.ok(t, "run")
}
