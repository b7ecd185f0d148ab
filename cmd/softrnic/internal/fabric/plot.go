package fabric

import (
	"cmp"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// colours are those of the lines, in the order of the legend.
var colours = []color.RGBA{{0x1f, 0x5f, 0xbf, 0xff}, {0xd9, 0x6a, 0x0b, 0xff}, {0x2d, 0x8a, 0x4e, 0xff}, {0x7b, 0x3f, 0xa0, 0xff},
	{0xb0, 0x1e, 0x3c, 0xff}, {0x1b, 0x9a, 0xaa, 0xff}, {0x8a, 0x6d, 0x3b, 0xff}, {0x6b, 0x6f, 0x76, 0xff}}

// curve is a line of a plot.
type curve struct {
	name string
	xys  plotter.XYs
}

func addCurves(p *plot.Plot, all []curve) error {
	for i, c := range all {
		if len(c.xys) == 0 {
			continue
		}
		line, err := plotter.NewLine(c.xys)
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.name, err)
		}
		line.Color, line.Width = colours[i%len(colours)], 1.5
		p.Add(line)
		if c.name != "" {
			p.Legend.Add(c.name, line)
		}
	}
	return nil
}

// plotSlowdown plots slowdown by size, or if there are few sizes, by percentile.
func (s *summary) plotSlowdown(sizes []sizeRow) (svg template.HTML, title string, err error) {
	if len(s.rows) == 0 {
		return "", "", nil
	}
	var all []curve
	p := output.NewPlot("Flow size", "Slowdown")
	if len(sizes) >= 4 {
		title = "Slowdown by flow size"
		p.X.Tick.Marker = plot.TickerFunc(output.DecimalSizeTicks)
		for _, of := range []struct {
			name string
			get  func(*percentiles) float64
		}{{"99 %", func(p *percentiles) float64 { return p.P99 }}, {"95 %", func(p *percentiles) float64 { return p.P95 }},
			{"median", func(p *percentiles) float64 { return p.P50 }}} {
			c := curve{name: of.name}
			for _, row := range sizes {
				c.xys = append(c.xys, plotter.XY{X: float64(row.Size), Y: of.get(&row.Slowdown)})
			}
			all = append(all, c)
		}
	} else {
		title = "Slowdown by percentile"
		p.X.Label.Text, p.X.Tick.Marker = "Percentile", plot.TickerFunc(output.PercentileTicks)
		for i, w := range s.Workloads {
			var values []float64
			for _, row := range s.rows {
				if row.load == i {
					values = append(values, row.slowdown())
				}
			}
			slices.Sort(values)
			c := curve{name: w.Kind}
			for k, v := range values {
				c.xys = append(c.xys, plotter.XY{X: float64(len(values)) / float64(len(values)-k), Y: v})
			}
			all = append(all, c)
		}
	}
	p.X.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(output.LinearTicks)
	if err := addCurves(p, all); err != nil {
		return "", "", err
	}
	if p.X.Min == p.X.Max {
		p.X.Max = 10 * p.X.Min
	}
	p.Y.Min, p.Y.Max = 1, max(p.Y.Max, 1.1)
	if p.Y.Max > 20 {
		p.Y.Scale, p.Y.Tick.Marker, p.Y.Max = plot.LogScale{}, plot.TickerFunc(output.DecimalTicks), p.Y.Max*2.5
	} else {
		p.Y.Max += (p.Y.Max - 1) * 0.05 * float64(1+len(all)) // room for the legend
	}
	svg, err = output.SVG(p)
	return svg, title, err
}

// bins divide the time of a run for plots.
type bins struct {
	width time.Duration
	each  int64 // intervals of samples in a bin
	count int
}

// Numbers of bins: flows are sampled when a message is acknowledged, so that they have fewer.
const (
	queueBins = 250
	rateBins  = 100
)

func (r *run) bins(most int) bins {
	intervals := max(1, int(math.Ceil(float64(r.now())/float64(r.series.interval))))
	each := (intervals + most - 1) / most
	return bins{time.Duration(each) * r.series.interval, int64(each), (intervals + each - 1) / each}
}

// unit is the unit of a time axis.
func (b *bins) unit() (string, float64) {
	if t := b.width * time.Duration(b.count); t >= 2*time.Second {
		return "s", 1e9
	} else if t >= 2*time.Millisecond {
		return "ms", 1e6
	}
	return "µs", 1e3
}

func (b *bins) plot(y string) *plot.Plot {
	unit, _ := b.unit()
	p := output.NewPlot("Virtual time ["+unit+"]", y)
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(output.LinearTicks), plot.TickerFunc(output.LinearTicks)
	p.Legend.Left = false
	p.Legend.XOffs = -8
	return p
}

// line returns a curve through a value of each bin.
func (b *bins) line(name string, values []float64) curve {
	c := curve{name: name}
	_, unit := b.unit()
	for i, v := range values {
		if !math.IsNaN(v) {
			c.xys = append(c.xys, plotter.XY{X: float64(b.width) * (float64(i) + 0.5) / unit, Y: v})
		}
	}
	return c
}

// plotQueues plots the longest queues.
func (r *run) plotQueues(b bins) (template.HTML, error) {
	queues, last := map[int32][]float64{}, map[int32]sample{}
	var ids []int32
	hold := func(id int32, until int) { // a queue remains as it is between two samples
		if s, ok := last[id]; ok && s.after > 0 {
			for i := int(s.bin/b.each) + 1; i < until; i++ {
				queues[id][i] = float64(s.after) / 1e3
			}
		}
	}
	for _, s := range r.series.queues {
		i := int(s.bin / b.each)
		q := queues[s.id]
		if i >= b.count || q == nil && s.queued == 0 {
			continue
		}
		if q == nil {
			q = make([]float64, b.count)
			queues[s.id] = q
			ids = append(ids, s.id)
		}
		hold(s.id, i)
		q[i] = max(q[i], float64(s.queued)/1e3)
		last[s.id] = s
	}
	for _, id := range ids {
		hold(id, b.count)
	}
	if len(ids) == 0 {
		return "", nil
	}
	slices.SortFunc(ids, func(a, b int32) int {
		return cmp.Or(cmp.Compare(slices.Max(queues[b]), slices.Max(queues[a])), cmp.Compare(a, b))
	})
	p := b.plot("Queue [kB]")
	var all []curve
	for _, id := range ids[:min(6, len(ids))] {
		all = append(all, b.line(portName(r.ports[id]), queues[id]))
	}
	return finish(p, all)
}

// finish adds curves to a plot from zero on, with room for the legend.
func finish(p *plot.Plot, all []curve) (template.HTML, error) {
	if err := addCurves(p, all); err != nil {
		return "", err
	}
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, max(p.Y.Max, 1e-3)*(1.05+0.045*float64(len(all)))
	return output.SVG(p)
}

// maxLines is the most flows that have a line each.
const maxLines = 8

// plotRates plots the rate of each flow, or percentiles of many, and their sum.
func (r *run) plotRates(b bins) (each, sum template.HTML, many bool, err error) {
	if len(r.series.rates) == 0 {
		return "", "", false, nil
	}
	many = len(r.flows) > maxLines
	total := make([]float64, b.count)
	rates := make([]map[int32]float64, b.count)
	seen := map[int32]int64{} // the last interval of a flow
	for _, s := range r.series.rates {
		// What is acknowledged at once has been sent since the acknowledgement before.
		from, ok := seen[s.id]
		if !ok {
			from = int64(r.flows[s.id].start/r.series.interval) - 1
		}
		seen[s.id] = s.bin
		from = min(from, s.bin-1)
		v := float64(s.bytes) * 8 / b.width.Seconds() / 1e9 / float64(s.bin-from)
		for i := int((from + 1) / b.each); i <= min(int(s.bin/b.each), b.count-1); i++ {
			if rates[i] == nil {
				rates[i] = map[int32]float64{}
			}
			intervals := min(s.bin+1, int64(i+1)*b.each) - max(from+1, int64(i)*b.each)
			rates[i][s.id] += v * float64(intervals)
			total[i] += v * float64(intervals)
		}
	}
	var all []curve
	if many {
		for _, q := range []struct {
			name  string
			share float64
		}{{"90 %", 0.9}, {"median", 0.5}, {"10 %", 0.1}} {
			values := make([]float64, b.count)
			for i := range values {
				values[i] = math.NaN()
				if len(rates[i]) > 0 {
					var active []float64
					for _, v := range rates[i] {
						active = append(active, v)
					}
					slices.Sort(active)
					values[i] = quantile(active, q.share)
				}
			}
			all = append(all, b.line(q.name, values))
		}
	} else {
		for _, f := range r.flows {
			values := make([]float64, b.count)
			for i := range values {
				values[i] = rates[i][int32(f.id)]
				if at := time.Duration(i) * b.width; at+b.width < f.start || f.end > 0 && at > f.end {
					values[i] = math.NaN() // no line
				}
			}
			all = append(all, b.line(fmt.Sprintf("host%d to host%d", f.from, f.to), values))
		}
	}
	if each, err = finish(b.plot("Rate of a flow [Gbit/s]"), all); err == nil {
		sum, err = finish(b.plot("All flows [Gbit/s]"), []curve{b.line("", total)})
	}
	return each, sum, many, err
}
