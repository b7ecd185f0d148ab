package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// report is a table of results. With SOFTRNIC_REPORT=1 its test writes it to the directory reports,
// in the long run.
type report struct {
	strings.Builder
	wanted bool
}

func newReport(t *testing.T, head string) *report {
	r := &report{wanted: gate.InLong() && os.Getenv("SOFTRNIC_REPORT") == "1"}
	r.printf("Written by %s.\n\n%s", t.Name(), head)
	return r
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(r, format, args...) }

func (r *report) write(t *testing.T, name string) {
	if r.wanted {
		ok(t, os.WriteFile(filepath.Join("reports", name), []byte(r.String()), 0o666))
	}
}

// draw writes plots as one picture, if the report is enabled.
func (r *report) draw(t *testing.T, name string, plots [][]*plot.Plot) {
	if !r.wanted {
		return
	}
	canvas := vgsvg.New(30*vg.Centimeter, 24*vg.Centimeter)
	tiles := draw.Tiles{Rows: len(plots), Cols: len(plots[0]), PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2}
	for i, row := range plot.Align(plots, tiles, draw.New(canvas)) {
		for j, c := range row {
			plots[i][j].Draw(c)
		}
	}
	f := must(os.Create(filepath.Join("reports", name)))(t)
	_, err := canvas.WriteTo(f)
	ok(t, errors.Join(err, f.Close()))
}
