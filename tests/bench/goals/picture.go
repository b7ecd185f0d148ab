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
	titles, plots := []string{"Two processes with one processor each"}, [][]curve{here}
	if len(beside.BySize) > 0 {
		titles, plots = append(titles, "Beside rxe and siw, in an emulated machine"), append(plots, beside.BySize)
	}
	return drawPicture(file, titles, plots)
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
func drawPicture(file string, titles []string, plots [][]curve) error {
	row := make([]*plot.Plot, len(plots))
	for i, curves := range plots {
		p := plot.New()
		sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
		for _, style := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label,
			&p.Y.Tick.Label, &p.Legend.TextStyle} {
			style.Font = sans
		}
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = titles[i], "Message size [bytes]", "WRITE [Gbit/s]"
		p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, true, 8, -4
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(sizeTicks)
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Add(plotter.NewGrid())
		for k, c := range curves {
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
	canvas := vgsvg.New(vg.Length(len(plots))*13*vg.Centimeter, 10*vg.Centimeter)
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
