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
	if err := WriteHTML(&buf, rep, rows); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	page, picture := filepath.Join(dir, "page.html"), filepath.Join(dir, "page.png")
	mustWrite(t, page, buf.Bytes())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir="+filepath.Join(dir, "profile"),
		"--window-size=1000,2400", "--screenshot="+picture, "file://"+page).CombinedOutput()
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
	if count["before"] < 5000 || count["after"] < 5000 || count["best"] < 1000 {
		t.Errorf("the picture lacks bars or the marked row: %v", count)
	}
}
