//go:build linux

package main

// A picture of throughput by message size: of this machine, measured here, and of a machine with
// rxe and siw, whose figures the system test TestThroughput writes.

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// curve is the throughput by message size, in bytes and Gbit/s.
type curve struct {
	Name string
	X    []int
	Y    []float64
}

// ofKernel has the figures beside rxe and siw.
//
//go:embed testdata/kernel.json
var ofKernel []byte

// pictured are the message sizes.
var pictured = []int{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// picture measures this machine and draws the picture.
func picture(ctx context.Context, l *lab, rounds int, file string, progress io.Writer) error {
	here, err := measureCurves(ctx, l, rounds, progress)
	if err != nil {
		return err
	}
	var beside struct{ BySize []curve }
	if err := json.Unmarshal(ofKernel, &beside); err != nil {
		return fmt.Errorf("testdata/kernel.json: %w", err)
	}
	const y = "WRITE [Gbit/s]"
	graphs := []graph{{"Two processes with one processor each", y, here}}
	if len(beside.BySize) > 0 {
		graphs = append(graphs, graph{"Beside rxe and siw, in an emulated machine", y, beside.BySize})
	}
	return drawPicture(file, graphs)
}

// graph is one of a picture's plots.
type graph struct {
	title, y string
	curves   []curve
}

// socketPicture draws the bandwidth of streams and the requests a second, by size, of rsockets over
// shared memory and of the kernel's TCP on loopback. The best of all rounds count: see row.Best.
func socketPicture(ctx context.Context, l *lab, rounds int, file string, progress io.Writer) error {
	graphs := []graph{
		{title: "Streams, by the size of writes", y: "Gbit/s"},
		{title: "A request and its answer at a time, by their size", y: "requests a second"},
	}
	flags := []string{"--sockets", "--kernel-tcp", "127.0.0.1", "--transport", "rocev2"}
	for i, kind := range [][]string{{"write", "bw", "--buffer", strconv.Itoa(memory)}, {"send", "lat"}} {
		var names []string
		best := map[string]map[int]float64{}
		for range rounds {
			for _, size := range pictured[:len(pictured)-1+(1-i)] { // requests of 1 MiB are no requests
				p, err := between(overShm, nil, slices.Concat(kind, flags, []string{"--size", strconv.Itoa(size)})...)(ctx, l)
				if err != nil {
					return fmt.Errorf("%v, %d bytes: %w", kind, size, err)
				}
				for _, r := range p[1:] { // the QP's is first
					v := r.Gbps
					if i == 1 {
						v = 1e6 / (2 * r.Latency.Typical)
					}
					if best[r.Over] == nil {
						names, best[r.Over] = append(names, r.Over), map[int]float64{}
					}
					best[r.Over][size] = max(best[r.Over][size], v)
					fmt.Fprintf(progress, "%s, %d bytes: %.3g %s\n", r.Over, size, v, graphs[i].y)
				}
			}
		}
		for _, name := range names {
			c := curve{Name: name}
			for _, size := range pictured {
				if v, ok := best[name][size]; ok {
					c.X, c.Y = append(c.X, size), append(c.Y, v)
				}
			}
			graphs[i].curves = append(graphs[i].curves, c)
		}
	}
	return drawPicture(file, graphs)
}

// measureCurves measures all curves in turn in each round. Medians count.
func measureCurves(ctx context.Context, l *lab, rounds int, progress io.Writer) ([]curve, error) {
	jumbo := pathMTUs[1]
	flags := mtuFlags(jumbo.link)
	write := func(links [2]string, flags []string, transport string) func(int) (float64, error) {
		return func(size int) (float64, error) {
			return gbps(between(links, flags, "write", "bw", "--size", strconv.Itoa(size), "--buffer", strconv.Itoa(memory),
				"--transport", transport))(ctx, l)
		}
	}
	ways := []struct {
		name    string
		measure func(size int) (float64, error)
	}{
		{"RoCEv2, shared memory", write(overShm, flags, "rocev2")},
		{"RoCEv2, TAP", write(overTAP.links, flags, "rocev2")},
		{"iWARP, TAP", write(overTAP.links, flags, "iwarp")},
		{"the kernel's TCP, veth", func(size int) (float64, error) {
			r, err := l.iperf3(ctx, hostOf(socketAddrs[server]), size)
			return r.gbps, err
		}},
		{"ceiling over TAP: " + perFrame, func(int) (float64, error) {
			return yardGbps("tap", "-bridge", bridge, "-payload", strconv.Itoa(jumbo.payload), "-work", "-packets", strconv.Itoa(jumbo.packets),
				"-memory", strconv.Itoa(memory), "-cpu", "0")(ctx, l)
		}},
	}
	curves := make([]curve, len(ways))
	for _, size := range pictured {
		samples := make([][]float64, len(ways))
		for range rounds {
			for i, w := range ways {
				v, err := w.measure(size)
				if err != nil {
					return nil, fmt.Errorf("%s, %d bytes: %w", w.name, size, err)
				}
				samples[i] = append(samples[i], v)
			}
		}
		for i, w := range ways {
			c := &curves[i]
			c.Name, c.X, c.Y = w.name, append(c.X, size), append(c.Y, median(samples[i]))
			fmt.Fprintf(progress, "%s, %d bytes: %.2f Gbit/s\n", w.name, size, c.Y[len(c.Y)-1])
		}
	}
	return curves, nil
}

var lineColours = []color.RGBA{{0x7b, 0x3f, 0xa0, 0xff}, {0x1f, 0x5f, 0xbf, 0xff}, {0xd9, 0x6a, 0x0b, 0xff}, {0x2d, 0x8a, 0x4e, 0xff},
	{0x6b, 0x6f, 0x76, 0xff}, {0xb0, 0x1f, 0x3a, 0xff}}

// drawPicture writes the curves as SVG, one plot beside the other.
func drawPicture(file string, graphs []graph) error {
	row := make([]*plot.Plot, len(graphs))
	for i, g := range graphs {
		p := plot.New()
		sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
		for _, style := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label,
			&p.Y.Tick.Label, &p.Legend.TextStyle} {
			style.Font = sans
		}
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = g.title, "Message size [bytes]", g.y
		p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, true, 8, -4
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(sizeTicks)
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Add(plotter.NewGrid())
		for k, c := range g.curves {
			var points plotter.XYs
			for n, size := range c.X {
				points = append(points, plotter.XY{X: float64(size), Y: c.Y[n]})
			}
			line, marks, err := plotter.NewLinePoints(points)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			line.Color, line.Width = lineColours[k%len(lineColours)], 1.5
			marks.Color, marks.Radius, marks.Shape = line.Color, 2, draw.CircleGlyph{}
			p.Add(line, marks)
			p.Legend.Add(c.Name, line)
		}
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(p.Y.Min))), p.Y.Max*4 // room for the legend
		row[i] = p
	}
	canvas := vgsvg.New(vg.Length(len(graphs))*13*vg.Centimeter, 10*vg.Centimeter)
	tiles := draw.Tiles{Rows: 1, Cols: len(row), PadX: vg.Centimeter / 2}
	for i, c := range plot.Align([][]*plot.Plot{row}, tiles, draw.New(canvas))[0] {
		row[i].Draw(c)
	}
	var out bytes.Buffer
	_, err := canvas.WriteTo(&out)
	return errors.Join(err, os.WriteFile(file, out.Bytes(), 0o666))
}

// sizeTicks marks powers of 4.
func sizeTicks(from, to float64) (ticks []plot.Tick) {
	for size := 64; size <= 1<<20; size *= 4 {
		label := strconv.Itoa(size)
		switch {
		case size >= 1<<20:
			label = strconv.Itoa(size>>20) + " Mi"
		case size >= 1<<10:
			label = strconv.Itoa(size>>10) + " Ki"
		}
		if v := float64(size); v >= from && v <= to {
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}
