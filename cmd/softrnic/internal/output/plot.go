package output

import (
	"bytes"
	_ "embed"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"strconv"
	"sync"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Style is the style sheet of pages with plots and tables.
//
//go:embed page.css
var Style template.CSS

// NewPlot returns a plot with a grid and the labels of its axes.
func NewPlot(x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
	for _, style := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
		&p.Legend.TextStyle} {
		style.Font = sans
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Label.Padding, p.Y.Label.Padding = 4, 4
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.YOffs = 8, -4
	p.Legend.ThumbnailWidth, p.Legend.Padding = 24, 3
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xe4}, color.Gray{0xf0}
	p.Add(grid)
	return p
}

// SizeTicks returns ticks at the powers of two.
func SizeTicks(least, most float64) (ticks []plot.Tick) {
	for n, i := 1, 0; float64(n) <= most; n, i = 2*n, i+1 {
		if float64(n) < least {
			continue
		}
		t := plot.Tick{Value: float64(n)}
		if i%3 == 1 || most/least < 16 {
			t.Label = Size(n)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// LinearTicks returns about six ticks at multiples of 1, 2 or 5 times a power of ten.
func LinearTicks(least, most float64) (ticks []plot.Tick) {
	if !(most > least) {
		return []plot.Tick{{Value: least, Label: strconv.FormatFloat(least, 'g', 4, 64)}}
	}
	step := math.Pow10(int(math.Floor(math.Log10((most - least) / 6))))
	for _, m := range []float64{5, 2} {
		if (most-least)/(step*m) >= 4 {
			step *= m
			break
		}
	}
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	for i := math.Ceil(least / step); i*step <= most; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'f', decimals, 64)})
	}
	return ticks
}

// DecimalSizeTicks returns ticks at 1, 2 and 5 of each decade, in bytes.
func DecimalSizeTicks(least, most float64) (ticks []plot.Tick) {
	ticks = DecimalTicks(least, most)
	for i := range ticks {
		for _, u := range []struct {
			size float64
			name string
		}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}} {
			if v := ticks[i].Value; v >= u.size {
				ticks[i].Label = strconv.FormatFloat(v/u.size, 'g', -1, 64) + " " + u.name
				break
			}
		}
	}
	return ticks
}

// PercentileTicks returns ticks of an axis on which a percentile p is at 100/(100−p).
func PercentileTicks(least, most float64) (ticks []plot.Tick) {
	ticks = append(ticks, plot.Tick{Value: 1, Label: "0 %"}, plot.Tick{Value: 2, Label: "50 %"})
	for x := 10.0; x <= most; x *= 10 {
		ticks = append(ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(100-100/x, 'g', 8, 64) + " %"})
	}
	return ticks
}

// DecimalTicks returns ticks at 1, 2 and 5 of each decade.
func DecimalTicks(least, most float64) (ticks []plot.Tick) {
	for e := int(math.Floor(math.Log10(least))); math.Pow10(e) <= most; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow10(e); v >= least && v <= most {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', max(0, -e), 64)})
			}
		}
	}
	return ticks
}

// svgProlog matches the parts of an SVG file that an SVG element inside a page lacks.
var svgProlog = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)^.*?(<svg)|\s+xmlns(:\w+)?="[^"]*"`) })

// SVG draws a plot for a page.
func SVG(p *plot.Plot) (template.HTML, error) {
	const width, height = 9 * vg.Inch, 4.5 * vg.Inch
	c := vgsvg.New(width, height)
	p.Draw(draw.NewCanvas(c, width, height))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	return template.HTML(svgProlog().ReplaceAllString(b.String(), "$1")), nil
}
