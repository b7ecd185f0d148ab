package rsocket_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// random returns n pseudo-random bytes.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// Each half ends independently, and all data written before arrives, with queues and buffers of any
// size.
func TestHalfClose(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		small := rsocket.Config{SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096, Inline: -1}
		for _, cfg := range []rsocket.Config{{}, small, {Inline: 200, RQSize: 20}} {
			cfg.Transport = transport
			a, b := pair(t, m, &cfg)
			for _, way := range [][2]*rsocket.Conn{{a, b}, {b, a}} {
				data := random(1<<17 + 17)
				written := make(chan error, 1)
				go func() {
					_, err := io.Copy(way[0], io.MultiReader(bytes.NewReader(data[:1000]), bytes.NewReader(data[1000:])))
					written <- errors.Join(err, way[0].CloseWrite())
				}()
				var got bytes.Buffer
				_, err := io.Copy(&got, way[1])
				ok(t, err)
				ok(t, <-written)
				if sha256.Sum256(got.Bytes()) != sha256.Sum256(data) {
					t.Fatalf("%d bytes of %d arrived, or different bytes", got.Len(), len(data))
				}
				if _, err := way[0].Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
					t.Errorf("Write after CloseWrite: %v", err)
				}
			}
		}
	})
}

// The reader gets all data after the writer has closed the connection.
func TestCloseLosesNothing(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		a, b := pair(t, m, &rsocket.Config{Transport: transport})
		data := random(100_000) // less than the buffers
		_, err := a.Write(data)
		ok(t, err)
		ok(t, a.Close())
		got, err := io.ReadAll(b)
		ok(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d, or different bytes", len(got), len(data))
		}
		if _, err := b.Write(data); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write to a peer that has closed: %v", err)
		}
		if err := a.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Close again: %v", err)
		}
	})
}

// The peer's writer continues after CloseRead.
func TestCloseRead(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		a, b := pair(t, m, &rsocket.Config{Transport: transport})
		ok(t, b.CloseRead())
		_, err := a.Write(random(1 << 20))
		ok(t, err)
		if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("Read after CloseRead: %d, %v", n, err)
		}
	})
}

// A web server runs over a Listener, with HTTP/1.1 and HTTP/2.
func TestHTTP(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		for _, two := range []bool{false, true} {
			t.Run(fmt.Sprintf("2=%v", two), func(t *testing.T) {
				to, from, at := devices(t, m)
				cfg := &rsocket.Config{Transport: transport}
				l, err := rsocket.Listen(to, netip.AddrPortFrom(at, 0).String(), cfg)
				ok(t, err)
				protocols := new(http.Protocols)
				protocols.SetHTTP1(!two)
				protocols.SetUnencryptedHTTP2(two)
				srv := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(w, r.Body)
				})}
				go srv.Serve(l)
				defer srv.Close()
				tr := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
					return rsocket.Dial(ctx, from, addr, cfg)
				}}
				defer tr.CloseIdleConnections()
				data, version := random(300_000), 1
				if two {
					version = 2
				}
				answers := make(chan error)
				for range 8 {
					go func() { answers <- post(tr, "http://"+l.Addr().String()+"/", data, version) }()
				}
				for range 8 {
					ok(t, <-answers)
				}
			})
		}
	})
}
