// Package capture is a link that writes the packets of another link to a pcapng file, which
// Wireshark dissects like a capture from the wire.
//
// A superframe is written as its packets, each with complete checksums. The file therefore shows
// the packets that the receiving host gets, which may be more than the frames on the link.
package capture

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"sync"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Link is a link whose frames are recorded. Recording costs a copy and a checksum of each packet.
type Link struct {
	inner  link.Link
	poller link.Poller // inner, or nil
	clock  clock.Clock

	mu     sync.Mutex
	out    *pcapgo.NgWriter
	file   io.Closer // nil if the writer is the caller's
	cutter link.Cutter
	err    error // the first error; no packet is written after it
	closed bool
}

var (
	_ link.Link       = (*Link)(nil)
	_ link.Poller     = (*Link)(nil)
	_ link.Carrier    = (*Link)(nil)
	_ link.Departures = (*Link)(nil)
	_ link.Clocked    = (*Link)(nil)
)

// New writes the frames of inner to w. The caller closes w after the link.
func New(inner link.Link, w io.Writer) (*Link, error) {
	ifce := pcapgo.NgInterface{Name: inner.Name(), OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet, TimestampResolution: 9}
	out, err := pcapgo.NewNgWriterInterface(w, ifce, pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "softrnic"}})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("capture of %s: %w", inner.Name(), err)
	}
	l := &Link{inner: inner, clock: link.ClockOf(inner), out: out}
	l.poller, _ = inner.(link.Poller)
	return l, nil
}

// Create is like New, with a file of this name, which Close closes. An existing file is used if it
// is empty, a FIFO or a device. Otherwise the error wraps fs.ErrExist, and the file is not
// modified.
func Create(inner link.Link, path string) (*Link, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("capture of %s: %w", inner.Name(), err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		err = fmt.Errorf("%s is not empty (%d bytes; %w): remove it, or use another name", path, info.Size(), fs.ErrExist)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture of %s: %w", inner.Name(), err), f.Close())
	}
	l, err := New(inner, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l.file = f
	return l, nil
}

// record writes frames of one direction.
func (l *Link) record(frames []link.Frame, d pcapgo.NgEpbFlag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now() // with the lock: the times of a file do not go back
	for i := range frames {
		if l.err != nil || l.closed {
			return // after an error, no frame is cut or checksummed
		}
		for p := range l.cutter.Packets(&frames[i]) {
			l.err = l.out.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: now, CaptureLength: len(p), Length: len(p)},
				p, pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: d}})
		}
	}
}

// Err returns the first error of writing the capture. Such an error ends the capture, and the link
// continues to work.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return nil
	}
	return fmt.Errorf("capture of %s stopped: %w", l.inner.Name(), l.err)
}

// Flush writes buffered packets to the file.
func (l *Link) Flush() error {
	l.mu.Lock()
	if l.err == nil && !l.closed {
		l.err = l.out.Flush()
	}
	l.mu.Unlock()
	return l.Err()
}

// Close closes the inner link and then the capture. It returns the errors of both.
func (l *Link) Close() error {
	err := l.inner.Close()
	flushed := l.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return err
	}
	l.closed = true
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
	}
	return errors.Join(err, flushed)
}

// Attach implements link.Link.
func (l *Link) Attach(recv link.Receiver) {
	l.inner.Attach(func(frames []link.Frame) {
		l.record(frames, pcapgo.NgEpbFlagDirectionInbound)
		recv(frames)
	})
}

// Write implements link.Link. Frames are recorded before they are sent, so that a request is
// recorded before its answer. A frame that the inner link refuses is recorded too.
func (l *Link) Write(frames []link.Frame) (int, error) {
	l.record(frames, pcapgo.NgEpbFlagDirectionOutbound)
	return l.inner.Write(frames)
}

// Poll polls the inner link, if it can be polled.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}

// Name is the inner link's name.
func (l *Link) Name() string { return l.inner.Name() }

// MAC implements link.Link.
func (l *Link) MAC() net.HardwareAddr { return l.inner.MAC() }

// MTU implements link.Link.
func (l *Link) MTU() int { return l.inner.MTU() }

// State implements link.Carrier.
func (l *Link) State() link.State { return link.StateOf(l.inner) }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { link.Watch(l.inner, f) }

// WatchDepartures implements link.Departures.
func (l *Link) WatchDepartures(f func(mac [6]byte)) { link.WatchDepartures(l.inner, f) }

// Clock implements link.Clocked.
func (l *Link) Clock() clock.Clock { return l.clock }

// Offloads implements link.Link.
func (l *Link) Offloads() link.Offloads { return l.inner.Offloads() }
