package plan

import (
	"bytes"
	"context"
	"image/png"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestHTMLInBrowser renders the page as a person would see it: the bars of
// both colours and the marked row must be on the picture.
func TestHTMLInBrowser(t *testing.T) {
	var browser string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			browser = p
		}
	}
	if browser == "" {
		t.Skip("no Chromium here to render the page with")
	}
	rep, rows := renderedReport(t)
	var buf bytes.Buffer
	if err := WriteHTML(&buf, rep, rows, nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	page, picture := filepath.Join(dir, "page.html"), filepath.Join(dir, "page.png")
	mustWrite(t, page, buf.Bytes())
	for width, least := range map[string]map[string]int{"1280": {"before": 5000, "after": 5000, "best": 1000}, "420": {"before": 1500, "after": 1500, "best": 1000}} {
		t.Run(width, func(t *testing.T) {
			count := shot(t, browser, page, picture, width)
			for what, n := range least {
				if count[what] < n {
					t.Errorf("the picture lacks bars or the marked row: %v, at least %v wanted", count, least)
				}
			}
		})
	}
}

// shot takes a picture of the page in a window of a width and counts the pixels
// of the colours that tell.
func shot(t *testing.T, browser, page, picture, width string) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"),
		"--window-size="+width+",3200", "--screenshot="+picture, "file://"+page).CombinedOutput()
	if err != nil {
		t.Skipf("the browser does not start here: %v\n%s", err, out)
	}
	img, err := png.Decode(bytes.NewReader(mustRead(t, picture)))
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			switch r, g, bl, _ := img.At(x, y).RGBA(); [3]uint32{r >> 8, g >> 8, bl >> 8} {
			case [3]uint32{0x25, 0x63, 0xa8}:
				count["before"]++
			case [3]uint32{0xd9, 0x82, 0x2b}:
				count["after"]++
			case [3]uint32{0xe3, 0xf1, 0xe5}:
				count["best"]++
			}
		}
	}
	return count
}
