// Package responder is the target's side of softrnic conform. It handles the requests of the
// control protocol (package control) with the public functions of package verbs alone.
package responder

import (
	"bufio"
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/verbs"
)

// Serve answers testers on l until ctx ends or l fails. It closes l.
func Serve(ctx context.Context, l net.Listener, gate *accept.Gate, log *slog.Logger, dev *verbs.Device, token string) error {
	return accept.Serve(ctx, l, gate, log, func(ctx context.Context, conn net.Conn, prove func()) {
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		s := &session{dev: dev, token: token, qps: map[int]*queuePair{}}
		s.serve(conn, prove)
		_ = conn.Close()
	})
}

// helloTimeout is the time that a tester has for its first request.
const helloTimeout = 5 * time.Second

// session is a tester's connection with its objects.
type session struct {
	dev    *verbs.Device
	token  string
	pd     *verbs.PD // nil before hello
	qps    map[int]*queuePair
	number int // of the last queue pair
}

func (s *session) serve(conn net.Conn, prove func()) {
	defer s.end()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	in := bufio.NewScanner(conn)
	in.Buffer(nil, control.MaxLine)
	out := json.NewEncoder(conn)
	for in.Scan() {
		var req control.Request
		var reply control.Reply
		err := json.Unmarshal(in.Bytes(), &req)
		if err == nil {
			reply, err = s.do(&req)
		}
		if err != nil {
			reply = control.Reply{Error: err.Error()}
		}
		if out.Encode(&reply) != nil || s.pd == nil {
			return
		}
		prove()
		_ = conn.SetDeadline(time.Time{})
	}
}

// end destroys the session's objects. There is no peer left to report errors to.
func (s *session) end() {
	for _, q := range s.qps {
		_ = q.destroy()
	}
	_ = cli.Close(s.pd)
}

func (s *session) do(r *control.Request) (reply control.Reply, err error) {
	switch {
	case r.Op == control.Hello:
		return s.hello(r.Token)
	case s.pd == nil:
		return reply, errors.New("say hello first, with the token")
	case r.Op == control.CreateQP:
		return s.create(r.Create)
	}
	q := s.qps[r.QP]
	if q == nil {
		return reply, fmt.Errorf("qp %d: there is none", r.QP)
	}
	switch r.Op {
	case control.ConnectQP:
		return reply, q.connect(r.Connect)
	case control.PostRecv, control.PostSend, control.Read, control.Write:
		return q.access(r)
	case control.Poll:
		reply.Completions, err = q.poll(min(time.Duration(r.WaitMillis)*time.Millisecond, control.MaxWait))
		return reply, err
	case control.Guard:
		reply.Intact = q.intact()
		return reply, nil
	case control.State:
		reply.State = q.qp.State().String()
		return reply, nil
	case control.Listen, control.DialTester, control.CMEvent, control.Accept, control.Reject, control.Disconnect:
		return q.connectCM(r)
	case control.DestroyQP:
		delete(s.qps, r.QP)
		return reply, q.destroy()
	}
	return reply, fmt.Errorf("op %q: unknown", r.Op)
}

func (s *session) hello(token string) (reply control.Reply, err error) {
	if subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		return reply, errors.New("the token is wrong")
	}
	if s.pd == nil {
		if s.pd, err = s.dev.AllocPD(); err != nil {
			return reply, err
		}
	}
	reply.Name, reply.RFC7306 = s.dev.Name(), true
	gids, err := s.dev.GIDTable(1)
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && g.GID.Addr().IsValid() {
			reply.Addr = append(reply.Addr, g.GID.Addr().String())
		}
	}
	return reply, err
}

func (s *session) create(c *control.Create) (reply control.Reply, err error) {
	switch {
	case c == nil:
		return reply, errors.New("create: missing")
	case c.Memory < 1 || c.Memory > control.MaxMemory:
		return reply, fmt.Errorf("memory %d: 1 to %d", c.Memory, control.MaxMemory)
	case len(s.qps) == control.MaxQPs:
		return reply, fmt.Errorf("there are %d queue pairs already", control.MaxQPs)
	}
	q, err := newQueuePair(s.dev, s.pd, c)
	if err != nil {
		return reply, err
	}
	s.number++
	s.qps[s.number] = q
	return control.Reply{QP: s.number, QPN: q.qp.Num(), RemoteAddr: q.mr.Addr(), RKey: q.mr.RKey()}, nil
}

// guardLen is the number of guard bytes on either side of a region, with the value guardByte. No
// request may change them.
const (
	guardLen  = 4096
	guardByte = 0xa5
)

// gidIndex returns the index of the GID of an address.
func gidIndex(dev *verbs.Device, addr string) (uint8, error) {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return 0, fmt.Errorf("local_addr: %w", err)
	}
	gids, err := dev.GIDTable(1)
	if err != nil {
		return 0, err
	}
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && g.GID.Addr() == a {
			return uint8(g.Index), nil
		}
	}
	return 0, fmt.Errorf("local_addr %s: the port has no such address", addr)
}

// intact reports whether the guard bytes are unchanged.
func (q *queuePair) intact() bool {
	guard := bytes.Repeat([]byte{guardByte}, guardLen)
	q.settle()
	return bytes.Equal(q.buf[:guardLen], guard) && bytes.Equal(q.buf[len(q.buf)-guardLen:], guard)
}
