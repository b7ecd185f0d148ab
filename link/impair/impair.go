// Package impair is a link that makes another one worse: it loses, repeats, delays, reorders and damages packets, at
// random from a seed or by script.
//
// It announces every offload and cuts superframes itself, in both directions, so that each impairment meets a single
// packet with complete checksums.
package impair

import (
	"fmt"
	"net"

	"github.com/softrnic/softrnic/link"
)

// Link is inner, impaired.
type Link struct {
	inner   link.Link
	in, out *direction
}

var _ link.Link = (*Link)(nil)

// New impairs inner as cfg says. The same configuration does the same to the same packets.
func New(inner link.Link, cfg Config) (*Link, error) {
	for _, d := range []struct {
		name string
		d    *Direction
	}{{"in", &cfg.In}, {"out", &cfg.Out}} {
		if err := d.d.check(); err != nil {
			return nil, fmt.Errorf("impair: %s: %w", d.name, err)
		}
	}
	l := &Link{inner: inner, in: newDirection(cfg.In, cfg.Seed, 1), out: newDirection(cfg.Out, cfg.Seed, 2)}
	l.out.deliver = func(frames []link.Frame) error {
		_, err := inner.Write(frames)
		return err
	}
	return l, nil
}

// Attach implements link.Link.
func (l *Link) Attach(recv link.Receiver) {
	l.in.deliver = func(frames []link.Frame) error {
		recv(frames)
		return nil
	}
	l.inner.Attach(func(frames []link.Frame) {
		for i := range frames {
			l.in.pass(&frames[i])
		}
		_ = l.in.flush()
	})
}

// Write implements link.Link. What is held back and then refused by the inner link is lost.
func (l *Link) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if err := frames[i].Validate(l.MTU(), offloads); err != nil {
			return i, fmt.Errorf("%s: %w", l.Name(), err)
		}
		l.out.pass(&frames[i])
		if err := l.out.flush(); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

// Close drops what is held back and closes the inner link.
func (l *Link) Close() error {
	l.in.close()
	l.out.close()
	return l.inner.Close()
}

// Counters of what happened to the packets of one direction.
type Counters struct {
	Packets    uint64 // that came
	Lost       uint64 // by chance, burst or rule
	Duplicated uint64
	Reordered  uint64 // held back
	Corrupted  uint64
	Overflowed uint64 // lost because Limit packets were held
}

// Counters returns those of received and of sent packets.
func (l *Link) Counters() (in, out Counters) { return l.in.counters(), l.out.counters() }

// Name is the inner link's.
func (l *Link) Name() string { return l.inner.Name() }

// MAC is the inner link's.
func (l *Link) MAC() net.HardwareAddr { return l.inner.MAC() }

// MTU is the inner link's.
func (l *Link) MTU() int { return l.inner.MTU() }

// Offloads are all: what comes is cut here.
func (l *Link) Offloads() link.Offloads { return offloads }

var offloads = link.Offloads{USO: true, TSO: true, Checksum: true}
