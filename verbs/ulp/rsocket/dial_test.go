package rsocket_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// A name has two addresses and the first refuses the connection. The connection to the second
// works, without state from the failed attempt.
func TestDialSecondAddress(t *testing.T) {
	const name = "two.test"
	resolve(t, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.3"))
	addrs, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip", name)
	ok(t, err)
	if len(addrs) != 2 {
		t.Fatalf("%s has the addresses %v", name, addrs)
	}
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server, "10.0.0.3/24"), open(t, lan.Port(), client)
		cfg := &rsocket.Config{Transport: transport}
		l, err := rsocket.Listen(to, netip.AddrPortFrom(addrs[1].Unmap(), 7).String(), cfg)
		ok(t, err)
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		accepted := make(chan error, 1)
		go func() {
			c, err := l.AcceptContext(ctx)
			if err == nil {
				_, err = c.Write([]byte("hello"))
				err = errors.Join(err, c.Close())
			}
			accepted <- err
		}()
		c, err := rsocket.Dial(ctx, from, name+":7", cfg)
		ok(t, err)
		defer c.Close()
		if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
			t.Errorf("%q was read, %v", b, err)
		}
		ok(t, <-accepted)
	})
}

// resolve makes all names resolve to the given IPv4 addresses until the end of the test.
func resolve(t *testing.T, addrs ...netip.Addr) {
	t.Helper()
	dns, err := net.ListenPacket("udp", "127.0.0.1:0")
	ok(t, err)
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", dns.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		dns.Close()
	})
	go func() {
		var b [512]byte
		for {
			n, from, err := dns.ReadFrom(b[:])
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			for _, a := range addrs {
				if q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
						Body:   &dnsmessage.AResource{A: a.As4()}})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = dns.WriteTo(answer, from)
			}
		}
	}()
}
