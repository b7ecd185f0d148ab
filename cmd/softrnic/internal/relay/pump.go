package relay

import (
	"io"
	"net"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// pump copies from src to dst until src ends, closes dst for writing, and counts the bytes. An
// rsocket passes its own buffer to the other side's Write or Read.
func pump(dst, src net.Conn, n *atomic.Uint64) error {
	var err error
	if from, ok := src.(*rsocket.Conn); ok {
		_, err = from.WriteTo(io.MultiWriter(dst, counter{n}))
	} else if to, ok := dst.(*rsocket.Conn); ok {
		_, err = to.ReadFrom(io.TeeReader(src, counter{n}))
	} else {
		_, err = io.Copy(io.MultiWriter(dst, counter{n}), onlyReader{src})
	}
	if err != nil {
		return err
	}
	return dst.(interface{ CloseWrite() error }).CloseWrite() // TCP, TLS and rsockets have it
}

// counter is a writer that only counts.
type counter struct{ n *atomic.Uint64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(uint64(len(b)))
	return len(b), nil
}

// onlyReader hides TCP's WriterTo, whose fast paths do not count.
type onlyReader struct{ io.Reader }
