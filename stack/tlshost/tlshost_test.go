package tlshost_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/tlshost"
	"github.com/softrnic/softrnic/tests/stacktest"
)

const port = 7471

// pair is two hosts on a medium, and their TLS.
type pair struct {
	*testing.T
	a, b         *tlshost.Host
	aAddr, bAddr netip.Addr
	below        stack.Network // a's stack, without TLS
	ca           *stacktest.Authority
}

// over runs a test over gVisor's TCP, whose streams are waited for without a goroutine, and over
// the kernel's.
func over(t *testing.T, f func(p *pair)) { overWith(t, nil, f) }

// overWith lets change change the configurations of the hosts.
func overWith(t *testing.T, change func(ca *stacktest.Authority, a, b *tlshost.Config), f func(p *pair)) {
	t.Parallel()
	for _, m := range stacktest.Media {
		if m.Name != "pipe" && m.Name != "kernel" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			ca := stacktest.NewAuthority(t)
			ends := [2]stacktest.End{}
			ends[0], ends[1] = m.Hosts(t)
			p := &pair{T: t, aAddr: ends[0].Addr, bAddr: ends[1].Addr, below: ends[0].Host, ca: ca}
			a := &tlshost.Config{TLS: ca.Config(t, "a.test", ends[0].Addr.String())}
			b := &tlshost.Config{TLS: ca.Config(t, "b.test", ends[1].Addr.String())}
			if change != nil {
				change(ca, a, b)
			}
			p.a, p.b = must(tlshost.New(ends[0].Host, a))(t), must(tlshost.New(ends[1].Host, b))(t)
			defer func() {
				if err := errors.Join(p.a.Close(), p.b.Close()); err != nil {
					t.Error(err)
				}
			}()
			f(p)
		})
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (p *pair) listen() stack.StreamListener {
	p.Helper()
	l := must(p.b.ListenStream(netip.AddrPortFrom(p.bAddr, port)))(p)
	p.Cleanup(func() { _ = l.Close() })
	return l
}

// connect returns the two ends of a connection.
func (p *pair) connect() (a, b stack.Stream) {
	p.Helper()
	l := p.listen()
	a = p.dial()
	b = must(l.Accept())(p).(stack.Stream)
	for _, s := range []stack.Stream{a, b} {
		_ = s.SetDeadline(time.Now().Add(30 * time.Second))
		p.Cleanup(s.Abort)
	}
	return a, b
}

func (p *pair) dial() stack.Stream {
	p.Helper()
	return must(p.a.DialStream(p.Context(), netip.AddrPort{}, netip.AddrPortFrom(p.bAddr, port)))(p)
}

// TestData sends data both ways at once with Write and Read, more than all buffers hold, and ends
// both directions in an orderly way.
func TestData(t *testing.T) {
	over(t, func(p *pair) {
		a, b := p.connect()
		data := make([]byte, 4<<20)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		var work sync.WaitGroup
		for _, s := range []stack.Stream{a, b} {
			work.Go(func() {
				if n, err := s.Write(data); n != len(data) || err != nil {
					p.Errorf("wrote %d bytes: %v", n, err)
				}
				if err := s.CloseWrite(); err != nil {
					p.Error(err)
				}
				if _, err := s.Write([]byte{1}); !errors.Is(err, syscall.EPIPE) {
					p.Errorf("Write after CloseWrite: %v, want EPIPE", err)
				}
			})
			work.Go(func() {
				if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data) {
					p.Errorf("read %d bytes: %v", len(got), err)
				}
			})
		}
		work.Wait()
		for _, s := range []stack.Stream{a, b} {
			if err := s.Close(); err != nil {
				p.Error(err)
			}
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				p.Errorf("Read after Close: %v", err)
			}
		}
	})
}

type filler struct{ b []byte }

func (f filler) WritePiece(b []byte) bool { return copy(b, f.b) == len(b) }

type consumer func(b []byte) bool

func (c consumer) Consume(b []byte) bool { return c(b) }

// TestPieces sends pieces of all sizes with Send until there is no room, and again when OnRoom's
// function is called. The peer receives them with Wait and Receive, or NotifyReadable.
func TestPieces(t *testing.T) {
	over(t, func(p *pair) {
		a, b := p.connect()
		data := bytes.Repeat([]byte("a piece of a stream, "), 1<<20) // more than the buffers hold
		room := make(chan struct{}, 1)
		a.OnRoom(func() {
			select {
			case room <- struct{}{}:
			default:
			}
		})
		full := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			waited := 0
			for rest := data; len(rest) > 0; {
				n := min(len(rest), []int{1, 100, a.MSS(), 20000, stack.MaxPiece}[rand.N(5)])
				ok, err := a.Send(n, filler{rest[:n]})
				if err != nil {
					p.Error(err)
					return
				}
				if ok {
					rest = rest[n:]
					continue
				}
				if waited++; waited == 1 {
					close(full)
				}
				<-room
			}
			if err := a.CloseWrite(); err != nil {
				p.Error(err)
			}
		}()
		<-full // the peer reads only now
		got := make([]byte, 0, len(data))
		for {
			if n, ok := b.(stack.ReadNotifier); ok && rand.N(2) == 0 {
				ready := make(chan struct{})
				n.NotifyReadable(func() { close(ready) })
				<-ready
			} else if err := b.Wait(); err != nil {
				p.Fatal(err)
			}
			err := b.Receive(consumer(func(b []byte) bool {
				got = append(got, b...)
				return rand.N(3) > 0
			}))
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				p.Fatal(err)
			}
		}
		<-ended
		if !bytes.Equal(got, data) {
			p.Errorf("received %d bytes, which are not the %d sent", len(got), len(data))
		}
		if _, err := a.Send(stack.MaxPiece+1, filler{}); err == nil {
			p.Error("a piece larger than MaxPiece was sent")
		}
	})
}

// TestNotFilled checks that nothing is sent of a piece that could not be filled.
func TestNotFilled(t *testing.T) {
	over(t, func(p *pair) {
		a, b := p.connect()
		if ok, err := a.Send(5, filler{}); ok || !errors.Is(err, stack.ErrNotFilled) {
			p.Errorf("Send: %v, %v", ok, err)
		}
		if ok, err := a.Send(3, filler{[]byte("abc")}); !ok || err != nil {
			p.Errorf("Send: %v, %v", ok, err)
		}
		got := make([]byte, 8)
		if n, err := b.Read(got); string(got[:n]) != "abc" || err != nil {
			p.Errorf("read %q, %v", got[:n], err)
		}
	})
}

// TestDeadlines: a late Wait, Read or Write ends with a timeout, and the connection goes on.
func TestDeadlines(t *testing.T) {
	over(t, func(p *pair) {
		a, b := p.connect()
		_ = a.SetDeadline(time.Now().Add(20 * time.Millisecond))
		if err := a.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
			p.Errorf("Wait: %v", err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			p.Errorf("Read: %v", err)
		}
		if n, ok := a.(stack.ReadNotifier); ok {
			called := make(chan struct{})
			n.NotifyReadable(func() { close(called) })
			<-called
		}
		_ = a.SetDeadline(time.Now().Add(200 * time.Millisecond))
		sent, err := a.Write(make([]byte, 64<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			p.Errorf("Write of more than the buffers hold: %v", err)
		}
		_ = a.SetDeadline(time.Time{})
		received := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(b, make([]byte, sent+4))
			received <- err
		}()
		if _, err := a.Write([]byte("more")); err != nil {
			p.Error(err)
		}
		if err := <-received; err != nil {
			p.Error(err)
		}
	})
}

// TestTruncated: an end of TCP that TLS has not announced is an error, not the end of the stream.
func TestTruncated(t *testing.T) {
	over(t, func(p *pair) {
		l := p.listen()
		raw := must(p.below.DialStream(p.Context(), netip.AddrPort{}, netip.AddrPortFrom(p.bAddr, port)))(p)
		defer raw.Abort()
		c := tls.Client(raw, &tls.Config{Certificates: p.ca.Config(p, "raw.test").Certificates, InsecureSkipVerify: true})
		if _, err := c.Write([]byte("data")); err != nil {
			p.Fatal(err)
		}
		b := must(l.Accept())(p).(stack.Stream)
		defer b.Abort()
		if err := raw.CloseWrite(); err != nil {
			p.Fatal(err)
		}
		if got, err := io.ReadAll(b); string(got) != "data" || !errors.Is(err, io.ErrUnexpectedEOF) {
			p.Errorf("read %q, %v: want ErrUnexpectedEOF", got, err)
		}
	})
}

// TestReset: after Abort, the peer gets an error.
func TestReset(t *testing.T) {
	over(t, func(p *pair) {
		a, b := p.connect()
		a.Abort()
		if err := b.Wait(); err != nil {
			p.Fatal(err)
		}
		if err := b.Receive(consumer(func([]byte) bool { return true })); err == nil || errors.Is(err, io.EOF) {
			p.Errorf("Receive: %v", err)
		}
	})
}

// TestHostClosed: the end of a host ends a Write that waits.
func TestHostClosed(t *testing.T) {
	over(t, func(p *pair) {
		a, _ := p.connect()
		_ = a.SetDeadline(time.Time{})
		written := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 64<<20))
			written <- err
		}()
		for a.Unanswered() == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := p.a.Close(); err != nil {
			p.Error(err)
		}
		if err := <-written; err == nil {
			p.Error("Write has succeeded")
		}
	})
}

// TestRefused: connections with a wrong or missing certificate fail.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ca *stacktest.Authority, a, b *tlshost.Config, t *testing.T)
		dial   string // in the error of the dialing side; "": it gets an alert later
	}{
		"server of another authority": {func(_ *stacktest.Authority, a, _ *tlshost.Config, t *testing.T) {
			a.TLS.RootCAs = stacktest.NewAuthority(t).Pool()
		}, "unknown authority"},
		"server with another name": {func(_ *stacktest.Authority, a, _ *tlshost.Config, _ *testing.T) {
			a.TLS.ServerName = "c.test"
		}, "not c.test"},
		"server at another address": {func(ca *stacktest.Authority, _, b *tlshost.Config, t *testing.T) {
			b.TLS.Certificates = ca.Config(t, "b.test", "192.0.2.1").Certificates
		}, "192.0.2.1"},
		"server that is not admitted": {func(_ *stacktest.Authority, a, _ *tlshost.Config, _ *testing.T) {
			a.Admit = func(_ netip.Addr, cert *x509.Certificate) bool { return cert.DNSNames[0] != "b.test" }
		}, "not allowed"},
		"client without certificate": {func(_ *stacktest.Authority, a, _ *tlshost.Config, _ *testing.T) {
			a.TLS.Certificates = nil
		}, ""},
		"client of another authority": {func(_ *stacktest.Authority, a, _ *tlshost.Config, t *testing.T) {
			a.TLS.Certificates = stacktest.NewAuthority(t).Config(t, "a.test").Certificates
		}, ""},
		"client that is not admitted": {func(_ *stacktest.Authority, _, b *tlshost.Config, _ *testing.T) {
			b.Admit = func(_ netip.Addr, cert *x509.Certificate) bool { return cert.DNSNames[0] != "a.test" }
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			overWith(t, func(ca *stacktest.Authority, a, b *tlshost.Config) { c.change(ca, a, b, t) }, func(p *pair) {
				l := p.listen()
				s, err := p.a.DialStream(p.Context(), netip.AddrPort{}, netip.AddrPortFrom(p.bAddr, port))
				if c.dial != "" {
					if err == nil || !strings.Contains(err.Error(), c.dial) {
						p.Errorf("dial: %v, want %q", err, c.dial)
					}
				} else if err == nil {
					_ = s.SetDeadline(time.Now().Add(10 * time.Second))
					if _, err = s.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
						p.Errorf("Read: %v, want an alert", err)
					}
					s.Abort()
				}
				waitFor(p, func() bool { return p.b.Refused() == 1 })
				_ = l.Close()
				if c, err := l.Accept(); err == nil {
					p.Errorf("a connection with %v was accepted", c.RemoteAddr())
				}
			})
		})
	}
}

func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	for range 10000 {
		if f() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("it has not happened in 10 s")
}

// TestSilentClients: clients that connect and say nothing are limited, and delay nobody.
func TestSilentClients(t *testing.T) {
	over(t, func(p *pair) {
		l := p.listen()
		var silent []stack.Stream
		for range 300 {
			s := must(p.below.DialStream(p.Context(), netip.AddrPort{}, netip.AddrPortFrom(p.bAddr, port)))(p)
			defer s.Abort()
			silent = append(silent, s)
		}
		a := p.dial()
		defer a.Abort()
		b := must(l.Accept())(p)
		defer b.Close()
		if _, err := a.Write([]byte("x")); err != nil {
			p.Error(err)
		}
		if n, err := b.Read(make([]byte, 1)); n != 1 || err != nil {
			p.Error(n, err)
		}
		// A refused client is counted when its goroutine ends, long before the others' 5 s are over.
		for give := time.Now().Add(2 * time.Second); p.b.Refused() < 300-256; time.Sleep(time.Millisecond) {
			if time.Now().After(give) {
				p.Fatalf("%d of 300 silent clients were refused", p.b.Refused())
			}
		}
		if n := p.b.Displaced(); n < 300-256 {
			p.Errorf("%d were displaced", n)
		}
		// The others are refused in time.
		for _, s := range silent {
			_ = s.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := s.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				p.Fatalf("a silent client: %v", err)
			}
		}
	})
}

// TestGarbage: a client that does not speak TLS is refused, with an alert.
func TestGarbage(t *testing.T) {
	over(t, func(p *pair) {
		p.listen()
		s := must(p.below.DialStream(p.Context(), netip.AddrPort{}, netip.AddrPortFrom(p.bAddr, port)))(p)
		defer s.Abort()
		if _, err := s.Write([]byte("MPA ID Req Frame, or anything else")); err != nil {
			p.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, s)
		waitFor(p, func() bool { return p.b.Refused() == 1 })
	})
}

// TestSilentServer: a dial ends with its context.
func TestSilentServer(t *testing.T) {
	over(t, func(p *pair) {
		l := must(p.below.ListenStream(netip.AddrPortFrom(p.aAddr, port)))(p)
		defer l.Close()
		ctx, cancel := context.WithTimeout(p.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := p.b.DialStream(ctx, netip.AddrPort{}, netip.AddrPortFrom(p.aAddr, port)); !errors.Is(err, context.DeadlineExceeded) {
			p.Errorf("dial: %v", err)
		}
	})
}

// TestIdentity: both sides see the name and the key hash of the other.
func TestIdentity(t *testing.T) {
	over(t, func(p *pair) {
		a, b := p.connect()
		for want, s := range map[string]stack.Stream{"b.test": a, "a.test": b} {
			id, ok := s.(stack.Authenticated).PeerIdentity()
			if !ok || id.Name != want || len(id.PublicKey) != 44 {
				p.Errorf("identity %+v, %v, want %s", id, ok, want)
			}
		}
	})
}

// TestNoCertificate: a host without a certificate can dial, but not listen.
func TestNoCertificate(t *testing.T) {
	overWith(t, func(_ *stacktest.Authority, a, b *tlshost.Config) {
		a.TLS.Certificates, b.TLS.ClientAuth = nil, tls.NoClientCert
	}, func(p *pair) {
		if _, err := p.a.ListenStream(netip.AddrPortFrom(p.aAddr, port)); err == nil || !strings.Contains(err.Error(), "certificate") {
			p.Errorf("listen: %v", err)
		}
		_, b := p.connect()
		if id, ok := b.(stack.Authenticated).PeerIdentity(); ok {
			p.Errorf("a peer without a certificate is %+v", id)
		}
	})
}

// TestNoDatagrams: the host has neither datagrams nor frames, which TLS would not protect.
func TestNoDatagrams(t *testing.T) {
	over(t, func(p *pair) {
		for _, n := range p.a.NICs() {
			if n.Datagrams() != nil || n.Frames() != nil {
				p.Errorf("%s has a port for datagrams or frames", n.Name())
			}
		}
	})
}

// closing is a stack that only closes.
type closing struct {
	tlshost.Stack
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// TestConfigErrors: a configuration that could be replaced, or is missing, is an error, and the
// stack is closed.
func TestConfigErrors(t *testing.T) {
	replaced := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }}
	for want, cfg := range map[string]*tlshost.Config{"Config.TLS": {}, "GetConfigForClient": {TLS: replaced}} {
		s := new(closing)
		if _, err := tlshost.New(s, cfg); err == nil || !strings.Contains(err.Error(), want) || !s.closed {
			t.Errorf("%v, want %s; closed: %t", err, want, s.closed)
		}
	}
}

// TestLongHandshake: a client that sends more than a handshake needs is refused.
func TestLongHandshake(t *testing.T) {
	overWith(t, func(_ *stacktest.Authority, a, b *tlshost.Config) {
		own := &a.TLS.Certificates[0]
		for size := 0; size < 200<<10; size += len(own.Certificate[0]) { // crypto/tls allows 256 KiB
			own.Certificate = append(own.Certificate, own.Certificate[0])
		}
	}, func(p *pair) {
		p.listen()
		s, err := p.a.DialStream(p.Context(), netip.AddrPort{}, netip.AddrPortFrom(p.bAddr, port))
		if err == nil {
			defer s.Abort()
		}
		waitFor(p, func() bool { return p.b.Refused() == 1 })
	})
}
