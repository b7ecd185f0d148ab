package perf

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// colours are the colours of the lines in the order of the legend.
var colours = []struct {
	over   string
	colour color.RGBA
	dashes []vg.Length
}{
	{OverRoCE, color.RGBA{0x1f, 0x5f, 0xbf, 0xff}, nil},
	{OverIWARP, color.RGBA{0xd9, 0x6a, 0x0b, 0xff}, nil},
	{OverNothing, color.RGBA{0x7b, 0x3f, 0xa0, 0xff}, nil},
	{overTCP, color.RGBA{0x2d, 0x8a, 0x4e, 0xff}, []vg.Length{6, 3}},
	{overKernel, color.RGBA{0x6b, 0x6f, 0x76, 0xff}, []vg.Length{2, 3}},
}

// has reports whether there are latencies or, if latency is false, bandwidths.
func (r *report) has(latency bool) bool {
	return slices.ContainsFunc(r.Results, func(row *result) bool { return (row.Metric == metricLat) == latency })
}

// direct reports whether there are results of the direct path.
func (r *report) direct() bool {
	return slices.ContainsFunc(r.Results, func(row *result) bool { return row.Over == OverNothing })
}

// plotBandwidth plots bandwidth against message size. It is empty if there are no bandwidths.
func (r *report) plotBandwidth() (template.HTML, error) {
	if !r.has(false) {
		return "", nil
	}
	p := newPlot("Message size", "Bandwidth [Gb/s]")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(sizeTicks)
	if r.direct() { // on a linear scale, all other lines would be at the bottom, because the direct path is much faster
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(decimalTicks)
	} else {
		p.Y.Min = 0
	}
	err := r.lines(p, true, func(row *result) plotter.XYs {
		if row.Metric == metricLat || row.Gbps <= 0 {
			return nil
		}
		return plotter.XYs{{X: float64(row.Size), Y: row.Gbps}}
	})
	if err != nil {
		return "", err
	}
	if p.X.Min == p.X.Max { // a single size
		p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	}
	p.Y.Max *= 1.05
	return svg(p)
}

// plotLatency plots latency by percentile, of the smallest message, on an axis that stretches the
// highest percentiles. It is empty if there are no latencies.
func (r *report) plotLatency() (template.HTML, error) {
	if !r.has(true) {
		return "", nil
	}
	smallest := math.MaxInt
	for _, row := range r.Results {
		if row.Metric == metricLat {
			smallest = min(smallest, row.Size)
		}
	}
	p := newPlot("Percentile", "Latency [µs], "+output.Size(smallest))
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(percentileTicks)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(decimalTicks)
	err := r.lines(p, false, func(row *result) (xys plotter.XYs) {
		if row.Latency == nil || row.Size != smallest {
			return nil
		}
		for _, d := range row.Latency.Distribution {
			if d.Percent < 100 {
				xys = append(xys, plotter.XY{X: 100 / (100 - d.Percent), Y: d.Latency})
			}
		}
		return xys
	})
	if err != nil {
		return "", err
	}
	p.X.Max = max(p.X.Max, 10)
	p.Y.Min, p.Y.Max = p.Y.Min/1.3, p.Y.Max*1.3
	return svg(p)
}

func newPlot(x, y string) *plot.Plot {
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

// lines adds a line for each protocol through the points of its rows.
func (r *report) lines(p *plot.Plot, points bool, of func(*result) plotter.XYs) error {
	for _, c := range colours {
		var xys plotter.XYs
		for _, row := range r.Results {
			if row.Over == c.over {
				xys = append(xys, of(row)...)
			}
		}
		if len(xys) == 0 {
			continue
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.over, err)
		}
		line.Color, line.Width, line.Dashes = c.colour, 1.75, c.dashes
		p.Add(line)
		p.Legend.Add(c.over, line)
		if points {
			dots, err := plotter.NewScatter(xys)
			if err != nil {
				return fmt.Errorf("plot %s: %w", c.over, err)
			}
			dots.GlyphStyle = draw.GlyphStyle{Color: c.colour, Radius: 2, Shape: draw.CircleGlyph{}}
			p.Add(dots)
		}
	}
	return nil
}

func sizeTicks(least, most float64) (ticks []plot.Tick) {
	for n, i := 1, 0; float64(n) <= most; n, i = 2*n, i+1 {
		if float64(n) < least {
			continue
		}
		t := plot.Tick{Value: float64(n)}
		if i%3 == 1 || most/least < 16 {
			t.Label = output.Size(n)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

func percentileTicks(least, most float64) (ticks []plot.Tick) {
	ticks = append(ticks, plot.Tick{Value: 1, Label: "0 %"}, plot.Tick{Value: 2, Label: "50 %"})
	for x := 10.0; x <= most; x *= 10 {
		ticks = append(ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(100-100/x, 'g', 8, 64) + " %"})
	}
	return ticks
}

// decimalTicks returns ticks at 1, 2 and 5 of each decade.
func decimalTicks(least, most float64) (ticks []plot.Tick) {
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
var svgProlog = regexp.MustCompile(`(?s)^.*?(<svg)|\s+xmlns(:\w+)?="[^"]*"`)

// svg draws a plot for a page.
func svg(p *plot.Plot) (template.HTML, error) {
	const width, height = 9 * vg.Inch, 4.5 * vg.Inch
	c := vgsvg.New(width, height)
	p.Draw(draw.NewCanvas(c, width, height))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	return template.HTML(svgProlog.ReplaceAllString(b.String(), "$1")), nil
}
