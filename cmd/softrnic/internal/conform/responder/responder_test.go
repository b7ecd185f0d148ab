package responder_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/responder"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// serve runs a device as a target until the end of the test, and returns its address.
func serve(t testing.TB) (*verbs.Device, string) {
	t.Helper()
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- responder.Serve(ctx, l, new(accept.Limits).Gate("conform", 16), slog.New(slog.DiscardHandler), dev, "secret")
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil { // fails if an object is left
			t.Error(err)
		}
		host.Close()
	})
	return dev, l.Addr().String()
}

// TestToken: without the token, the tester gets an error and the connection ends.
func TestToken(t *testing.T) {
	_, addr := serve(t)
	for _, first := range []string{`{"op":"hello","token":"other"}`, `{"op":"hello"}`,
		`{"op":"create_qp","create":{"type":"RC","memory":1}}`, `nonsense`} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, first)
		in := json.NewDecoder(conn)
		var reply control.Reply
		if err := in.Decode(&reply); err != nil || reply.Error == "" || reply.Name != "" {
			t.Errorf("%s: %v, %+v", first, err, reply)
		}
		if err := in.Decode(&reply); err == nil {
			t.Errorf("%s: the connection continues", first)
		}
		conn.Close()
	}
}

// TestBounds: a request beyond the limits gets an error that names the limit, and the session
// continues.
func TestBounds(t *testing.T) {
	_, addr := serve(t)
	c, err := control.Dial(addr, "secret", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	made, err := c.Do(&control.Request{Op: control.CreateQP, Create: &control.Create{Type: "RC", Memory: 100}})
	if err != nil {
		t.Fatal(err)
	}
	over, err := c.Do(&control.Request{Op: control.CreateQP,
		Create: &control.Create{Type: "RC", Transport: "iwarp", Memory: 1, OwnPD: true}})
	if err != nil {
		t.Fatal(err)
	}
	for want, r := range map[string]control.Request{
		`transport "udp"`:           {Op: control.CreateQP, Create: &control.Create{Type: "RC", Memory: 1, Transport: "udp"}},
		"connect: a QP over iWARP":  {Op: control.ConnectQP, QP: over.QP, Connect: &control.Connect{}},
		"cm: addr":                  {Op: control.DialTester, QP: over.QP},
		"neither listens nor dials": {Op: control.Accept, QP: over.QP},

		"memory 0":            {Op: control.CreateQP, Create: &control.Create{Type: "RC"}},
		"memory 1048577":      {Op: control.CreateQP, Create: &control.Create{Type: "RC", Memory: control.MaxMemory + 1}},
		`type "XX"`:           {Op: control.CreateQP, Create: &control.Create{Type: "XX", Memory: 1}},
		`access "all"`:        {Op: control.CreateQP, Create: &control.Create{Type: "RC", Memory: 1, MRAccess: []string{"all"}}},
		"create: missing":     {Op: control.CreateQP},
		"connect: missing":    {Op: control.ConnectQP, QP: made.QP},
		"local_addr 10.9.9.9": {Op: control.ConnectQP, QP: made.QP, Connect: &control.Connect{LocalAddr: "10.9.9.9"}},
		"mtu 1000": {Op: control.ConnectQP, QP: made.QP,
			Connect: &control.Connect{LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.2", MTU: 1000}},
		"qp 99":                {Op: control.State, QP: 99},
		"offset 101, length 0": {Op: control.Read, QP: made.QP, Offset: 101},
		"offset 1, length 100": {Op: control.Read, QP: made.QP, Offset: 1, Length: 100},
		"offset -1":            {Op: control.Read, QP: made.QP, Offset: -1, Length: 1},
		"offset 0, length -1":  {Op: control.PostRecv, QP: made.QP, Length: -1},
		fmt.Sprintf("length %d: the", math.MaxInt): {Op: control.Read, QP: made.QP, Offset: 2, Length: math.MaxInt},
		"length 3: the": {Op: control.Write, QP: made.QP, Offset: 98, Data: []byte{1, 2, 3}},
		"send: missing": {Op: control.PostSend, QP: made.QP},
		`opcode "JUMP"`: {Op: control.PostSend, QP: made.QP, Send: &control.Send{Opcode: "JUMP"}},
		`op "jump"`:     {Op: "jump", QP: made.QP},
	} {
		if _, err := c.Do(&r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	for i := 2; i < control.MaxQPs; i++ {
		if _, err := c.Do(&control.Request{Op: control.CreateQP, Create: &control.Create{Type: "UC", Memory: 1}}); err != nil {
			t.Fatalf("queue pair %d: %v", i+1, err)
		}
	}
	if _, err := c.Do(&control.Request{Op: control.CreateQP, Create: &control.Create{Type: "RC", Memory: 1}}); err == nil {
		t.Error("there is no bound for queue pairs")
	}
}
