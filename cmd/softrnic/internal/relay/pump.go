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
		_, err = from.WriteTo(countingWriter{dst, n})
	} else if to, ok := dst.(*rsocket.Conn); ok {
		_, err = to.ReadFrom(countingReader{src, n})
	} else {
		_, err = io.Copy(countingWriter{dst, n}, onlyReader{src})
	}
	if err != nil {
		return err
	}
	return dst.(interface{ CloseWrite() error }).CloseWrite() // TCP, TLS and rsockets have it
}

type countingWriter struct {
	w io.Writer
	n *atomic.Uint64
}

func (c countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n.Add(uint64(n))
	return n, err
}

type countingReader struct {
	r io.Reader
	n *atomic.Uint64
}

func (c countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(uint64(n))
	return n, err
}

// onlyReader hides TCP's WriterTo, whose fast paths a countingWriter does not support.
type onlyReader struct{ io.Reader }
