//go:build linux

package main

// Floors: what a row would have if SoftRNIC took no time but for parts that it cannot leave out.
// Each side of a connection is busy all the time and does its parts one after the other, so their
// times for a byte add up.

import (
	"context"
	"strconv"
)

// parts are the rates of what a side does with each byte, in Gbit/s.
type parts struct{ copying, checking float64 }

// measureParts measures a copy of 64 KiB between regions that are larger than the caches, and one
// with MPA's CRC over it.
func (l *lab) measureParts(ctx context.Context) (p parts, err error) {
	args := []string{"copy", "-size", strconv.Itoa(small), "-memory", strconv.Itoa(memory)}
	if p.copying, err = yardGbps(args...)(ctx, l); err == nil {
		p.checking, err = yardGbps(append(args, "-crc")...)(ctx, l)
	}
	return p, err
}

// together returns the rate of several parts.
func together(rates ...float64) float64 {
	sum := 0.0
	for _, r := range rates {
		sum += 1 / r
	}
	return 1 / sum
}

// floorOf is what a row's floor has besides the yardstick.
type floorOf struct {
	text string
	rate func(p parts, yardstick float64) float64
}

var (
	copiedToo = floorOf{"the yardstick and a copy on each side", func(p parts, yardstick float64) float64 {
		return together(yardstick, p.copying)
	}}
	checkedToo = floorOf{"the yardstick and a copy with CRC on each side", func(p parts, yardstick float64) float64 {
		return together(yardstick, p.checking)
	}}
	copiedAndCheckedToo = floorOf{"the yardstick, a copy, and a copy with CRC on each side", func(p parts, yardstick float64) float64 {
		return together(yardstick, p.copying, p.checking)
	}}
	// TCP copies each byte once on each side too.
	crcToo = floorOf{"the yardstick and what a CRC adds to a copy, on each side", func(p parts, yardstick float64) float64 {
		return 1 / (1/yardstick + 1/p.checking - 1/p.copying)
	}}
	twoCopies = floorOf{"two copies on each side", func(p parts, _ float64) float64 { return p.copying / 2 }}
)

// besideFloor also measures the parts, and gives all rows of an experiment their floor.
func besideFloor(e *experiment, f floorOf) *experiment {
	return &experiment{e.rows, func(ctx context.Context, l *lab) error {
		if err := e.round(ctx, l); err != nil {
			return err
		}
		each, err := l.measureParts(ctx)
		if err != nil {
			return err
		}
		for _, r := range e.rows {
			r.addFloor(f, each)
		}
		return nil
	}}
}

// addFloor adds a sample of the floor, after one of the yardstick.
func (r *row) addFloor(f floorOf, p parts) {
	yardstick := r.Yardstick[len(r.Yardstick)-1]
	r.FloorOf = f.text
	r.Floor = append(r.Floor, f.rate(p, yardstick)/yardstick)
}
