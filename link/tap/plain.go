package tap

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/songgao/water"

	"github.com/softrnic/softrnic/link"
)

// plain sends and receives single packets with complete checksums, for TAP drivers without a
// virtio-net header.
type plain struct {
	name string
	rw   io.ReadWriteCloser

	started atomic.Bool
	closed  atomic.Bool
	done    chan struct{} // closed when the receiving goroutine has ended
	carrier plainCarrier

	mu      sync.Mutex
	scratch []byte // buffer for frames in pieces, guarded by mu
}

func newPlain(ifce *water.Interface, mtu int) *plain {
	return &plain{name: ifce.Name(), rw: ifce, done: make(chan struct{}), carrier: plainCarrier{mtu: mtu}}
}

func (p *plain) Attach(recv link.Receiver) {
	if p.started.Swap(true) {
		if p.closed.Load() {
			return
		}
		panic(p.name + ": Attach called twice: a link serves one host")
	}
	go func() {
		defer close(p.done)
		buf := make([]byte, link.EthernetHeaderLen+2*link.TagLen+link.MaxSuperframe)
		for {
			n, err := p.rw.Read(buf)
			if err != nil {
				if !p.closed.Load() {
					p.carrier.setRemoved()
				}
				return
			}
			if n >= link.EthernetHeaderLen {
				recv([]link.Frame{{Data: buf[:n:n]}})
			}
		}
	}()
}

// plainCarrier is the carrier of a plain link. It only detects that the interface cannot be read
// any more. It also holds the MTU.
type plainCarrier struct {
	mtu  int
	lost atomic.Bool

	mu    sync.Mutex // held while watch runs
	watch func()
}

// setRemoved records that the interface cannot be read any more.
func (s *plainCarrier) setRemoved() {
	s.lost.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil {
		s.watch()
	}
}

// State implements link.Carrier.
func (s *plainCarrier) State() link.State {
	if s.lost.Load() {
		return link.Removed
	}
	return link.Up
}

// Watch implements link.Carrier.
func (s *plainCarrier) Watch(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = f
}

func (s *plainCarrier) MTU() int { return s.mtu }

// Close stops calls of the watching function when the link is closed.
func (s *plainCarrier) Close() { s.Watch(nil) }

func (p *plain) Write(frames []link.Frame) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range frames {
		f := &frames[i]
		if err := f.Validate(p.carrier.mtu, link.Offloads{}); err != nil {
			return i, fmt.Errorf("%s: %w", p.name, err)
		}
		if p.closed.Load() {
			return i, fmt.Errorf("%s: %w", p.name, net.ErrClosed)
		}
		data := f.Data
		if len(f.More) > 0 {
			p.scratch = append(p.scratch[:0], f.Data...)
			for _, m := range f.More {
				p.scratch = append(p.scratch, m...)
			}
			data = p.scratch
		}
		if _, err := p.rw.Write(data); err != nil {
			return i, fmt.Errorf("%s: write of %d bytes: %w: is the interface up?", p.name, len(data), err)
		}
	}
	return len(frames), nil
}

func (p *plain) Close() error {
	var err error
	if !p.closed.Swap(true) {
		err = p.rw.Close()
		if !p.started.Swap(true) {
			close(p.done)
		}
	}
	<-p.done
	return err
}
