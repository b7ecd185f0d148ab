package perf

import (
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

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
	p := output.NewPlot("Message size", "Bandwidth [Gb/s]")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(output.SizeTicks)
	if r.direct() { // on a linear scale, all other lines would be at the bottom, because the direct path is much faster
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(output.DecimalTicks)
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
	return output.SVG(p)
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
	p := output.NewPlot("Percentile", "Latency [µs], "+output.Size(smallest))
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(output.PercentileTicks)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(output.DecimalTicks)
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
	return output.SVG(p)
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
