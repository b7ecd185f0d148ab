package rdmatransport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/stack/tlshost"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// tlsDevices opens two devices whose hosts have TLS, with the names a.test and b.test.
func tlsDevices(t *testing.T) (a, b *verbs.Device) {
	t.Helper()
	lan, ca := new(pipe.Switch), stacktest.NewAuthority(t)
	open := func(name, addr string) *verbs.Device {
		host := must(netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr + "/24"}}))(t)
		secured := must(tlshost.New(host, &tlshost.Config{TLS: ca.Config(t, name, addr)}))(t)
		dev := must(rdmatransport.Open(secured, nil))(t)
		t.Cleanup(func() {
			if err := errors.Join(dev.Close(), secured.Close()); err != nil {
				t.Error(err)
			}
		})
		return dev
	}
	return open("a.test", "10.0.0.1"), open("b.test", "10.0.0.2")
}

// TestTLS: over TLS, RoCEv2 is refused. iWARP connects, each side knows the name in the other's
// certificate, and SEND, WRITE and READ move data in large and small messages.
func TestTLS(t *testing.T) {
	a, b := tlsDevices(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := rdmacm.Dial(ctx, a, "10.0.0.2:7471", &rdmacm.Config{Transport: verbs.RoCEv2})
	if !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), "only iWARP") {
		t.Errorf("RoCEv2: %v", err)
	}
	cfg := &rdmacm.Config{Transport: verbs.IWARP}
	l := must(rdmacm.Listen(b, ":7471", cfg))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		r, err := l.Request(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if id, ok := r.PeerIdentity(); !ok || id.Name != "a.test" {
			t.Errorf("a request of %+v, %v", id, ok)
		}
		c, err := r.Accept(ctx, cfg)
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- c
	}()
	client := must(rdmacm.Dial(ctx, a, "10.0.0.2:7471", cfg))(t)
	server := <-accepted
	if server == nil {
		t.FailNow()
	}
	if id, ok := client.PeerIdentity(); !ok || id.Name != "b.test" {
		t.Errorf("connected with %+v, %v", id, ok)
	}
	for _, size := range []int{1, 1000, 1 << 20} {
		local, remote := bytes.Repeat([]byte{'l'}, size), make([]byte, size)
		lmr := must(client.PD().RegMR(local, verbs.AccessLocalWrite))(t)
		rmr := must(server.PD().RegMR(remote, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead))(t)
		post := func(wr verbs.SendWR) {
			t.Helper()
			wr.SGList = []verbs.SGE{lmr.SGE(0, size)}
			wr.Flags = verbs.SendSignaled
			wr.RemoteAddr, wr.RKey = rmr.Addr(), rmr.RKey()
			ok(t, client.QP().PostSend(&wr))
			if wc := wait(client.SendCQ()); wc.Status != verbs.WCSuccess {
				t.Fatalf("%v of %d bytes: %v", wr.Opcode, size, wc.Status)
			}
		}
		ok(t, server.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{rmr.SGE(0, size)}}))
		post(verbs.SendWR{Opcode: verbs.Send})
		if wc := wait(server.RecvCQ()); wc.Status != verbs.WCSuccess || !bytes.Equal(remote, local) {
			t.Errorf("SEND of %d bytes: %v", size, wc.Status)
		}
		for i := range local {
			local[i] = byte(i)
		}
		post(verbs.SendWR{Opcode: verbs.RDMAWrite})
		want := bytes.Clone(local)
		clear(local)
		post(verbs.SendWR{Opcode: verbs.RDMARead})
		if !bytes.Equal(local, want) {
			t.Errorf("WRITE and READ of %d bytes return other data", size)
		}
		ok(t, errors.Join(lmr.Close(), rmr.Close()))
	}
	ok(t, client.Close())
	<-server.Done()
	ok(t, server.Close())
}

// TestTLSRsocket: a stream rsocket over TLS delivers data both ways, and its end.
func TestTLSRsocket(t *testing.T) {
	a, b := tlsDevices(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cfg := &rsocket.Config{Transport: verbs.IWARP}
	l := must(rsocket.Listen(b, ":7471", cfg))(t)
	defer l.Close()
	data := bytes.Repeat([]byte("an rsocket over TLS, "), 1<<16)
	echoed := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			err = errors.Join(err, c.Close())
		}
		echoed <- err
	}()
	c := must(rsocket.Dial(ctx, a, "10.0.0.2:7471", cfg))(t)
	go func() {
		_, err := c.Write(data)
		if err = errors.Join(err, c.CloseWrite()); err != nil {
			t.Error(err)
		}
	}()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	ok(t, c.Close())
	ok(t, <-echoed)
}
