package fabric

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPicture writes README's picture: that of the report of README's command.
func TestPicture(t *testing.T) {
	x := newExperiment(t)
	page := filepath.Join(x.dir, "run.html")
	x.run("--topology", "leaf-spine:leaves=4,hosts=8,spines=4", "--workload", "permutation:size=4MB,shift=8", "--report", page)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, picture, ok := strings.Cut(string(text), "<svg ")
	picture, _, ended := strings.Cut(picture, "</svg>")
	if !ok || !ended || strings.Count(picture, "<path ") != 4*8+4*4 {
		t.Fatalf("the report's picture has %d cables", strings.Count(picture, "<path "))
	}
	// In a file of its own it needs the name of its language, and a background in dark pages.
	picture = `<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff" ` + picture + "</svg>\n"
	if os.Getenv("SOFTRNIC_REPORT") == "1" {
		if err := os.WriteFile(filepath.Join("reports", "network.svg"), []byte(picture), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}
