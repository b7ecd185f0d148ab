package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// A connection from its first call to its last, on both sides.
func TestConnection(t *testing.T) {
	for _, addrs := range [][2]string{{v4A, v4B}, {v6A, v6B}} {
		bubble(t, func(t *testing.T, a, b *end) {
			l := a.listen(rdmacm.TCP)
			l.SetContext("listener")
			to := netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 7471)
			c := b.resolve(rdmacm.TCP, to.String())
			if got := c.PeerAddr(); got != to {
				t.Errorf("PeerAddr %v, want %v", got, to)
			}
			if got := c.LocalAddr(); got.Addr().String() != addrs[1] || got.Port() < 32768 {
				t.Errorf("LocalAddr %v, want %v and an ephemeral port", got, addrs[1])
			}
			cq := qp(t, c)
			if cq.State() != verbs.StateInit {
				t.Errorf("QP is in %v before Connect, want INIT", cq.State())
			}
			must(t, c.Connect(&rdmacm.ConnParam{PrivateData: []byte("ping"), ResponderResources: 3, InitiatorDepth: 5,
				RetryCount: 6, RNRRetryCount: 7}))

			ev := a.next(rdmacm.ConnectRequest)
			s := ev.ID
			if ev.ListenID != l || s.Context() != "listener" || s.Transport() != verbs.RoCEv2 || s.Device() != a.dev {
				t.Errorf("request of listener %v, context %v, transport %v", ev.ListenID == l, s.Context(), s.Transport())
			}
			if s.LocalAddr() != to || s.PeerAddr() != c.LocalAddr() {
				t.Errorf("request from %v to %v, want %v to %v", s.PeerAddr(), s.LocalAddr(), c.LocalAddr(), to)
			}
			if p := ev.Param; string(p.PrivateData) != "ping" || p.ResponderResources != 5 || p.InitiatorDepth != 3 {
				t.Errorf("request with %+v", p)
			}
			sq := qp(t, s)
			must(t, s.Accept(&rdmacm.ConnParam{PrivateData: []byte("pong"), ResponderResources: rdmacm.MaxDepth, InitiatorDepth: 2}))
			if attr, _, _ := sq.Query(); attr.QPState != verbs.StateRTS || attr.MaxDestRDAtomic != 5 || attr.MaxRDAtomic != 2 {
				t.Errorf("accepted QP: %v, depths %d and %d, want RTS, 5, 2", attr.QPState, attr.MaxDestRDAtomic, attr.MaxRDAtomic)
			}
			if ev := b.next(rdmacm.Established); string(ev.Param.PrivateData) != "pong" || cq.State() != verbs.StateRTS {
				t.Errorf("established with %q, QP in %v", ev.Param.PrivateData, cq.State())
			}
			a.next(rdmacm.Established)

			must(t, c.Disconnect())
			if cq.State() != verbs.StateErr {
				t.Errorf("QP is in %v after Disconnect, want ERR", cq.State())
			}
			a.next(rdmacm.Disconnected)
			if sq.State() != verbs.StateRTS {
				t.Errorf("QP is in %v after Disconnected, want RTS", sq.State())
			}
			<-s.Done()
			must(t, s.Disconnect())
			if sq.State() != verbs.StateErr {
				t.Errorf("QP is in %v after Disconnect, want ERR", sq.State())
			}
			b.next(rdmacm.Disconnected)
			a.next(rdmacm.TimewaitExit)
			b.next(rdmacm.TimewaitExit)
			b.close(c)
			a.close(s, l)
		})
	}
}

// The parameters of a request can be passed to Accept even if the peer requests more than the
// device supports.
func TestAcceptParametersOfRequest(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		route, err := b.fake.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr(v4A))
		must(t, err)
		c, err := b.fake.Connect(&rdmacm.ConnectAttr{Route: route, PortSpace: rdmacm.TCP, PeerPort: 7471,
			Param: rdmacm.ConnParam{ResponderResources: maxDepth + 1, InitiatorDepth: 254}}, func(*rdmacm.ConnEvent) {})
		must(t, err)
		ev := a.next(rdmacm.ConnectRequest)
		if p := ev.Param; p.ResponderResources != maxDepth || p.InitiatorDepth != maxDepth {
			t.Errorf("depths %d and %d, want those of the device", p.ResponderResources, p.InitiatorDepth)
		}
		sq := qp(t, ev.ID)
		must(t, ev.ID.Accept(&ev.Param))
		if attr, _, _ := sq.Query(); attr.MaxDestRDAtomic != maxDepth || attr.MaxRDAtomic != maxDepth {
			t.Errorf("the QP has depths %d and %d", attr.MaxDestRDAtomic, attr.MaxRDAtomic)
		}
		c.Close()
		a.close(ev.ID, l)
	})
}

// An application that creates its own QP gets ConnectResponse, and calls Establish when the QP is
// ready.
func TestEstablishByApplication(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		_, mask, err := c.QPAttr(verbs.StateInit)
		if err != nil || mask&verbs.QPAttrPort == 0 {
			t.Errorf("attributes for INIT: %v, %v", mask, err)
		}
		_, _, err = c.QPAttr(verbs.StateRTR)
		wantErr(t, err, syscall.EINVAL)
		must(t, c.Connect(&rdmacm.ConnParam{QPNum: 77}))
		s := a.next(rdmacm.ConnectRequest).ID
		must(t, s.Accept(&rdmacm.ConnParam{QPNum: 88}))
		if ev := b.next(rdmacm.ConnectResponse); ev.Param.QPNum != 88 {
			t.Errorf("peer's QP %d, want 88", ev.Param.QPNum)
		}
		_, _, err = c.QPAttr(verbs.StateRTR)
		must(t, err)
		must(t, c.Establish())
		a.next(rdmacm.Established)
		wantErr(t, c.Establish(), syscall.EINVAL)
		b.noEvent()
		b.close(c)
		a.next(rdmacm.Disconnected)
		a.close(s, l)
	})
}

func TestFailures(t *testing.T) {
	type outcome struct {
		event  rdmacm.EventType
		status int
		errno  error
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, a, b *end) *rdmacm.ID // returns an ID of b
		want outcome
	}{
		{"no listener", func(t *testing.T, a, b *end) *rdmacm.ID {
			id := b.resolve(rdmacm.TCP, v4A+":7472")
			qp(t, id)
			must(t, id.Connect(nil))
			return id
		}, outcome{rdmacm.Rejected, rdmacm.RejectInvalidService, syscall.ECONNREFUSED}},
		{"no peer", func(t *testing.T, a, b *end) *rdmacm.ID {
			id := b.resolve(rdmacm.TCP, "10.0.0.3:7471")
			must(t, id.Connect(nil))
			return id
		}, outcome{rdmacm.Unreachable, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT}},
		{"neighbour does not answer in time", func(t *testing.T, a, b *end) *rdmacm.ID {
			b.fake.resolve = func(ctx context.Context, _ rdmacm.Route) error { <-ctx.Done(); return ctx.Err() }
			id := b.id(rdmacm.TCP)
			must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(v4A+":7471"), 2*time.Second))
			return id
		}, outcome{rdmacm.AddrError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT}},
		{"no neighbour", func(t *testing.T, a, b *end) *rdmacm.ID {
			b.fake.resolve = func(context.Context, rdmacm.Route) error { return errors.New("no answer") }
			id := b.id(rdmacm.TCP)
			must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(v4A+":7471"), 0))
			return id
		}, outcome{rdmacm.AddrError, -int(syscall.EHOSTUNREACH), syscall.EHOSTUNREACH}},
		{"route gone", func(t *testing.T, a, b *end) *rdmacm.ID {
			id := b.id(rdmacm.TCP)
			must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(v4A+":7471"), 0))
			b.next(rdmacm.AddrResolved)
			b.fake.route = syscall.ENETDOWN
			must(t, id.ResolveRoute())
			return id
		}, outcome{rdmacm.RouteError, -int(syscall.ENETDOWN), syscall.ENETDOWN}},
		{"QP does not come up", func(t *testing.T, a, b *end) *rdmacm.ID {
			a.listen(rdmacm.TCP)
			id := b.resolve(rdmacm.TCP, v4A+":7471")
			qp(t, id)
			b.fake.refuse = verbs.StateRTR
			must(t, id.Connect(nil))
			s := a.next(rdmacm.ConnectRequest).ID
			must(t, s.Accept(&rdmacm.ConnParam{QPNum: 1}))
			a.next(rdmacm.Rejected)
			return id
		}, outcome{rdmacm.ConnectError, -int(syscall.ENOMEM), syscall.ENOMEM}},
		{"disconnected", func(t *testing.T, a, b *end) *rdmacm.ID {
			_, s, id := connected(a, b)
			must(t, s.Disconnect())
			return id
		}, outcome{rdmacm.Disconnected, 0, syscall.ECONNRESET}},
		{"multicast", func(t *testing.T, a, b *end) *rdmacm.ID {
			id := b.id(rdmacm.UDP)
			must(t, id.Bind(netip.MustParseAddrPort(v4B+":0")))
			must(t, id.JoinMulticast(netip.MustParseAddr("239.0.0.14")))
			return id
		}, outcome{rdmacm.MulticastError, -int(syscall.ENETDOWN), syscall.ENETDOWN}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, a, b *end) {
				a.T, b.T = t, t
				id := c.make(t, a, b)
				q := id.QP()
				ev := b.next(c.want.event)
				if ev.ID != id || ev.Status != c.want.status {
					t.Errorf("status %d, want %d", ev.Status, c.want.status)
				}
				wantErr(t, ev.Err(), c.want.errno)
				if ended := c.want.event > rdmacm.ConnectResponse && c.want.event < rdmacm.MulticastJoin; ended {
					<-id.Done()
					want := verbs.StateErr
					if c.want.event == rdmacm.Disconnected {
						want = verbs.StateRTS // until this side disconnects
					}
					if q != nil && q.State() != want {
						t.Errorf("QP is in %v, want %v", q.State(), want)
					}
				}
				b.close(id)
			})
		})
	}
}

func TestReject(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		s := a.next(rdmacm.ConnectRequest).ID
		wantErr(t, s.Reject(make([]byte, maxREJ+1)), syscall.EINVAL)
		must(t, s.Reject(bytes.Repeat([]byte{7}, maxREJ)))
		ev := b.next(rdmacm.Rejected)
		var why *rdmacm.EventError
		if !errors.As(ev.Err(), &why) || why.Status != rdmacm.RejectConsumerDefined || len(why.PrivateData) != maxREJ {
			t.Errorf("rejected with %+v", why)
		}
		wantErr(t, s.Accept(nil), syscall.EINVAL)
		wantErr(t, c.Connect(nil), syscall.EINVAL)
		b.close(c)
		a.close(s, l)
	})
}

// A ConnectResponse can be rejected too.
func TestRejectResponse(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		wantErr(t, c.Reject(nil), syscall.EINVAL)
		s := a.next(rdmacm.ConnectRequest).ID
		must(t, s.Accept(nil))
		b.next(rdmacm.ConnectResponse)
		must(t, c.Reject([]byte("no")))
		if ev := a.next(rdmacm.Rejected); string(ev.Param.PrivateData) != "no" {
			t.Errorf("rejected with %q", ev.Param.PrivateData)
		}
		b.close(c)
		a.close(s, l)
	})
}

func TestPrivateDataSizes(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		req, rep := bytes.Repeat([]byte{1}, maxREQ), bytes.Repeat([]byte{2}, maxREP)
		wantErr(t, c.Connect(&rdmacm.ConnParam{PrivateData: append(req, 1)}), syscall.EINVAL)
		must(t, c.Connect(&rdmacm.ConnParam{PrivateData: req}))
		ev := a.next(rdmacm.ConnectRequest)
		clear(req) // the event has its own copy
		if !bytes.Equal(ev.Param.PrivateData, bytes.Repeat([]byte{1}, maxREQ)) {
			t.Errorf("request with %x", ev.Param.PrivateData)
		}
		wantErr(t, ev.ID.Accept(&rdmacm.ConnParam{PrivateData: append(rep, 2)}), syscall.EINVAL)
		must(t, ev.ID.Accept(&rdmacm.ConnParam{PrivateData: rep}))
		if ev := b.next(rdmacm.ConnectResponse); !bytes.Equal(ev.Param.PrivateData, rep) {
			t.Errorf("response with %x", ev.Param.PrivateData)
		}
		b.close(c)
		a.close(ev.ID, l)
	})
}

// When the last message of the peer's handshake is lost, Notify replaces it; otherwise the timeout
// is reported.
func TestNotify(t *testing.T) {
	for _, notify := range []bool{true, false} {
		bubble(t, func(t *testing.T, a, b *end) {
			a.fake.loseRTU = true
			l := a.listen(rdmacm.TCP)
			c := b.resolve(rdmacm.TCP, v4A+":7471")
			qp(t, c)
			must(t, c.Connect(nil))
			s := a.next(rdmacm.ConnectRequest).ID
			wantErr(t, s.Notify(), syscall.EINVAL)
			must(t, s.Accept(nil))
			b.next(rdmacm.Established)
			if notify {
				must(t, s.Notify())
				a.next(rdmacm.Established)
				must(t, s.Notify()) // late, and of no effect
			}
			if !notify {
				a.next(rdmacm.Unreachable)
			} else {
				a.noEvent()
			}
			b.close(c)
			if notify {
				a.next(rdmacm.Disconnected)
			}
			a.close(s, l)
		})
	}
}

// A call in a state that does not allow it is EINVAL and changes nothing; after Close it is
// ENOENT.
func TestWrongState(t *testing.T) {
	there := netip.MustParseAddrPort(v4A + ":7471")
	calls := map[string]func(*rdmacm.ID) error{
		"Bind":         func(id *rdmacm.ID) error { return id.Bind(netip.AddrPort{}) },
		"Listen":       func(id *rdmacm.ID) error { return id.Listen(1) },
		"ResolveAddr":  func(id *rdmacm.ID) error { return id.ResolveAddr(netip.AddrPort{}, there, 0) },
		"ResolveHost":  func(id *rdmacm.ID) error { return id.ResolveHost(netip.AddrPort{}, there.String(), 0) },
		"ResolveRoute": (*rdmacm.ID).ResolveRoute,
		"CreateQP":     func(id *rdmacm.ID) error { return id.CreateQP(nil, &verbs.QPInitAttr{}) },
		"CloseQP":      (*rdmacm.ID).CloseQP,
		"Connect":      func(id *rdmacm.ID) error { return id.Connect(nil) },
		"Accept":       func(id *rdmacm.ID) error { return id.Accept(nil) },
		"Reject":       func(id *rdmacm.ID) error { return id.Reject(nil) },
		"Establish":    (*rdmacm.ID).Establish,
		"Disconnect":   (*rdmacm.ID).Disconnect,
		"Notify":       (*rdmacm.ID).Notify,
		"SetReuseAddr": func(id *rdmacm.ID) error { return id.SetReuseAddr(true) },
		"SetAFOnly":    func(id *rdmacm.ID) error { return id.SetAFOnly(true) },
		"SetTOS":       func(id *rdmacm.ID) error { return id.SetTOS(8) },
		"Join":         func(id *rdmacm.ID) error { return id.JoinMulticast(netip.MustParseAddr("239.0.0.1")) },
	}
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		waiting := b.id(rdmacm.TCP)
		b.fake.resolve = func(ctx context.Context, _ rdmacm.Route) error { <-ctx.Done(); return ctx.Err() }
		must(t, waiting.ResolveAddr(netip.AddrPort{}, there, 0))
		synctest.Wait()
		b.fake.resolve = nil
		up := b.resolve(rdmacm.TCP, there.String())
		must(t, up.Connect(nil))
		request := a.next(rdmacm.ConnectRequest).ID
		gone := b.id(rdmacm.TCP)
		must(t, gone.Close())
		for _, c := range []struct {
			name    string
			id      *rdmacm.ID
			allowed []string // not tested here
		}{
			{"idle", b.id(rdmacm.TCP), []string{"Bind", "Listen", "ResolveAddr", "ResolveHost", "SetReuseAddr", "SetAFOnly", "SetTOS"}},
			{"listening", l, []string{"SetTOS"}},
			{"resolving", waiting, []string{"SetReuseAddr", "SetTOS"}},
			{"route resolved", b.resolve(rdmacm.TCP, there.String()), []string{"CreateQP", "Connect", "SetReuseAddr", "SetTOS", "Join"}},
			{"connecting", up, []string{"Join"}},
			{"requested", request, []string{"CreateQP", "Accept", "Reject", "SetTOS", "Join"}},
		} {
			for name, call := range calls {
				if slices.Contains(c.allowed, name) {
					continue
				}
				if err := call(c.id); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%s: %s: %v, want EINVAL", c.name, name, err)
				}
			}
		}
		for name, call := range calls {
			if err := call(gone); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("closed: %s: %v, want ErrClosed", name, err)
			}
		}
		wantErr(t, gone.Close(), verbs.ErrClosed)
		must(t, request.Accept(nil)) // the failed calls changed nothing
		b.next(rdmacm.ConnectResponse)
		must(t, waiting.Close())
	})
}

func TestBadArguments(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		_, err := rdmacm.CreateEventChannel()
		wantErr(t, err, syscall.EINVAL)
		_, err = rdmacm.CreateEventChannel(nil)
		wantErr(t, err, syscall.EINVAL)
		_, err = b.ch.CreateID(0x999, nil)
		wantErr(t, err, syscall.EINVAL)
		id := b.id(rdmacm.TCP)
		wantErr(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, 0), syscall.EINVAL)
		wantErr(t, id.ResolveAddr(netip.MustParseAddrPort("10.9.9.9:0"), netip.MustParseAddrPort(v4A+":1"), 0), syscall.EADDRNOTAVAIL)
		b.fake.route = syscall.ENETUNREACH
		wantErr(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:1"), 0), syscall.ENETUNREACH)
		b.fake.route = nil
		wantErr(t, id.SetAckTimeout(32), syscall.EINVAL)
		wantErr(t, id.SetTransports(), syscall.EINVAL)
		wantErr(t, id.JoinMulticast(netip.MustParseAddr(v4A)), syscall.EINVAL)
		must(t, id.Close())

		id = b.resolve(rdmacm.TCP, v4A+":1")
		wantErr(t, id.CreateQP(nil, nil), syscall.EINVAL)
		wantErr(t, id.CreateQP(nil, &verbs.QPInitAttr{Type: verbs.UD}), syscall.EINVAL)
		wantErr(t, id.CreateQP(nil, &verbs.QPInitAttr{Transport: verbs.IWARP}), syscall.EINVAL)
		pd, err := a.dev.AllocPD()
		must(t, err)
		wantErr(t, id.CreateQP(pd, &verbs.QPInitAttr{}), syscall.EINVAL)
		must(t, pd.Close())
		wantErr(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendSGE: 99}}), syscall.EINVAL)
		if id.QP() != nil {
			t.Error("the ID has a QP after CreateQP failed")
		}
		qp(t, id)
		wantErr(t, id.CreateQP(nil, &verbs.QPInitAttr{}), syscall.EINVAL)
		wantErr(t, id.Connect(&rdmacm.ConnParam{ResponderResources: maxDepth + 1}), syscall.EINVAL)
		wantErr(t, id.Connect(&rdmacm.ConnParam{InitiatorDepth: maxDepth + 1}), syscall.EINVAL)
		wantErr(t, id.Connect(&rdmacm.ConnParam{RetryCount: 8}), syscall.EINVAL)
		must(t, id.CloseQP())
		b.close(id)
		a.close()
	})
}

// Connect in port space UDP resolves the peer's QP, and creates no connection.
func TestUDP(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.UDP)
		c := b.resolve(rdmacm.UDP, "["+v6A+"]:7471")
		must(t, c.Connect(&rdmacm.ConnParam{PrivateData: []byte("who?")}))
		ev := a.next(rdmacm.ConnectRequest)
		if string(ev.Param.PrivateData) != "who?" {
			t.Errorf("request with %q", ev.Param.PrivateData)
		}
		must(t, ev.ID.Accept(&rdmacm.ConnParam{QPNum: 99, PrivateData: []byte("me")}))
		if ud := b.next(rdmacm.Established).UD; ud.QPNum != 99 || ud.QKey != rdmacm.UDPQKey || string(ud.PrivateData) != "me" {
			t.Errorf("resolved to %+v", ud)
		}
		a.noEvent()
		b.close(c)
		a.close(ev.ID, l)
	})
}

func TestMulticast(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		id := b.id(rdmacm.UDP)
		group := netip.MustParseAddr("239.0.0.7")
		must(t, id.Bind(netip.MustParseAddrPort("0.0.0.0:0")))
		wantErr(t, id.JoinMulticast(group), syscall.EINVAL) // on no particular device
		must(t, id.Close())
		id = b.id(rdmacm.UDP)
		must(t, id.Bind(netip.MustParseAddrPort(v4B+":0")))
		must(t, id.JoinMulticast(group))
		if ev := b.next(rdmacm.MulticastJoin); ev.Group != group || ev.UD.AHAttr.GRH.DGID != verbs.GIDFromAddr(group) {
			t.Errorf("joined %v by %+v", ev.Group, ev.UD)
		}
		wantErr(t, id.JoinMulticast(group), syscall.EADDRINUSE)
		if err := id.JoinMulticast(netip.MustParseAddr("239.0.0.13")); err == nil {
			t.Error("joined a group that the port refuses")
		}
		must(t, id.LeaveMulticast(group))
		wantErr(t, id.LeaveMulticast(group), syscall.EADDRNOTAVAIL)
		must(t, id.JoinMulticast(group))
		b.close(id)
		a.close()
	})
}

// TestMulticastQP: an ID's UD QP is attached to the ID's groups while the QP and the membership
// exist.
func TestMulticastQP(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		group := netip.MustParseAddr("239.0.0.7")
		joined := func() *rdmacm.ID {
			id := b.id(rdmacm.UDP)
			must(t, id.Bind(netip.MustParseAddrPort(v4B+":0")))
			must(t, id.CreateQP(nil, &verbs.QPInitAttr{}))
			must(t, id.JoinMulticast(group))
			return id
		}
		id := joined()
		b.next(rdmacm.MulticastJoin)
		wantErr(t, id.QP().Close(), syscall.EBUSY)
		must(t, id.LeaveMulticast(group))
		wantErr(t, id.QP().DetachMcast(verbs.GIDFromAddr(group)), syscall.EINVAL)
		must(t, id.JoinMulticastSendOnly(group))
		b.next(rdmacm.MulticastJoin)
		wantErr(t, id.QP().DetachMcast(verbs.GIDFromAddr(group)), syscall.EINVAL)
		must(t, id.LeaveMulticast(group))
		must(t, id.JoinMulticast(group))
		b.next(rdmacm.MulticastJoin)
		must(t, id.CloseQP())
		must(t, id.Close())

		id = joined()
		b.next(rdmacm.MulticastJoin)
		other := b.id(rdmacm.UDP)
		must(t, other.Bind(netip.MustParseAddrPort(v4B+":0")))
		must(t, other.CreateQP(nil, &verbs.QPInitAttr{}))
		must(t, other.JoinMulticast(group)) // one more than the device supports
		if ev := b.next(rdmacm.MulticastError); ev.ID != other || !errors.Is(ev.Err(), syscall.ENOMEM) {
			t.Errorf("status %d", ev.Status)
		}
		b.close(id, other)
		a.close()
	})
}

func TestNames(t *testing.T) {
	for ev := rdmacm.AddrResolved; ev <= rdmacm.TimewaitExit; ev++ {
		if s := ev.String(); len(s) < 15 || s[:14] != "RDMA_CM_EVENT_" {
			t.Errorf("event %d is %q", ev, s)
		}
	}
	if s := rdmacm.EventType(99).String(); s != "UNKNOWN EVENT 99" {
		t.Errorf("event 99 is %q", s)
	}
	for addr, want := range map[string]string{"10.0.0.1:7471": "10.0.0.1:7471", "[fd00::1]:80": "[fd00::1]:80",
		":5": "invalid AddrPort", "localhost:http": "127.0.0.1:80", "no-port": "", "1.2.3.4:66666": "", "": ""} {
		got, err := rdmacm.LookupHost(t.Context(), addr)
		switch {
		case want == "":
			wantErr(t, err, syscall.EINVAL)
		case err != nil:
			t.Errorf("%q: %v", addr, err)
		case !slices.ContainsFunc(got, func(a netip.AddrPort) bool { return a.String() == want }):
			t.Errorf("%q is %v, want %s", addr, got, want)
		}
	}
	const want = "RDMA_CM_EVENT_REJECTED: status 8, invalid service ID: no listener"
	if s := fmt.Sprint(&rdmacm.EventError{Type: rdmacm.Rejected, Status: 8}); s != want {
		t.Errorf("error is %q", s)
	}
}
