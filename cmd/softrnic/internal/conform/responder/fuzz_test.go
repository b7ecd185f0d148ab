package responder_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
)

// FuzzRequests: a tester with the token sends arbitrary lines. The target answers each that it can
// read, and keeps no object of the tester's afterwards.
func FuzzRequests(f *testing.F) {
	lines := func(requests ...control.Request) []byte {
		var b bytes.Buffer
		for _, r := range requests {
			if err := json.NewEncoder(&b).Encode(r); err != nil {
				f.Fatal(err)
			}
		}
		return b.Bytes()
	}
	rc := control.Create{Type: "RC", Memory: 100, QPAccess: []string{"remote_read"}, MRAccess: []string{"remote_read"}}
	connect := control.Connect{LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.1", PeerQPN: 2, MTU: 1024, MinRNR: 12, Timeout: 14, MaxRD: 1,
		MaxDestRD: 1}
	f.Add(lines(control.Request{Op: control.CreateQP, Create: &rc}, control.Request{Op: control.ConnectQP, QP: 1, Connect: &connect},
		control.Request{Op: control.PostRecv, QP: 1, Length: 100},
		control.Request{Op: control.PostSend, QP: 1, Length: 1, Send: &control.Send{Opcode: "SEND"}},
		control.Request{Op: control.Write, QP: 1, Offset: 99, Data: []byte{1}}, control.Request{Op: control.Read, QP: 1, Offset: 50, Length: 50},
		control.Request{Op: control.Poll, QP: 1}, control.Request{Op: control.DestroyQP, QP: 1}))
	iwarp := control.Create{Type: "RC", Transport: "iwarp", Memory: 1, OwnPD: true}
	f.Add(lines(control.Request{Op: control.CreateQP, Create: &iwarp},
		control.Request{Op: control.Listen, QP: 1, CM: &control.CM{Addr: "10.0.0.1:0"}},
		control.Request{Op: control.CMEvent, QP: 1}, control.Request{Op: control.Guard, QP: 1}, control.Request{Op: control.State, QP: 1}))
	dev, addr := serve(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		sent := lines(control.Request{Op: control.Hello, Token: "secret"})
		for line := range bytes.Lines(b) {
			var r control.Request
			if json.Unmarshal(line, &r) == nil {
				r.WaitMillis = 0 // nothing comes
				if r.CM != nil {
					r.CM.Addr = "10.0.0.1:0" // no other host, for which the target would wait
				}
				line = lines(r)
			}
			sent = append(sent, line...)
		}
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		for in := json.NewDecoder(conn); ; {
			var r control.Reply
			if err := in.Decode(&r); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n := dev.Resources(); n.QP != 0 || n.MR != 0 || n.PD > 1 {
			t.Errorf("the target keeps %+v", n)
		}
	})
}
