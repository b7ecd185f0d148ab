package nfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// client is an NFS client of tests. do passes a call to the server and returns the reply.
type client struct {
	do  func(call []byte) ([]byte, error)
	xid uint32
}

// local returns a client of an export without a network.
func local(e *export) *client {
	return &client{do: func(call []byte) ([]byte, error) {
		r := &rpcrdma.Call{Message: call, PeerAddr: netip.MustParseAddrPort("10.0.0.2:1")}
		if reply := e.HandleRPC(context.Background(), r); reply != nil {
			return reply, nil
		}
		return nil, errors.New("no reply")
	}}
}

func over(c *rpcrdma.Client) *client {
	return &client{do: func(call []byte) ([]byte, error) { return c.Call(context.Background(), call) }}
}

// args appends arguments: int as four bytes, uint64 as eight, string and []byte as an opaque.
func args(b []byte, list ...any) []byte {
	for _, a := range list {
		switch v := a.(type) {
		case int:
			b = words(b, uint32(v))
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		case string:
			b = appendOpaque(b, []byte(v))
		case []byte:
			b = appendOpaque(b, v)
		default:
			panic(fmt.Sprintf("%T", a))
		}
	}
	return b
}

func callOf(xid, program, version, procedure uint32, list ...any) []byte {
	return args(words(nil, xid, 0, 2, program, version, procedure, 0, 0, 0, 0), list...)
}

// call makes a call and returns a reader of the results.
func (c *client) call(t testing.TB, program, procedure uint32, list ...any) *xdr {
	t.Helper()
	c.xid++
	reply, err := c.do(callOf(c.xid, program, version3, procedure, list...))
	if err != nil {
		t.Fatal(err)
	}
	if outcome, ok := result(reply); !ok || outcome != acceptSuccess || binary.BigEndian.Uint32(reply) != c.xid {
		t.Fatalf("procedure %d: the reply is %x", procedure, reply)
	}
	return &xdr{b: reply, off: resultOffset, ok: true}
}

// nfs makes a call of NFS and returns the status and a reader of the rest.
func (c *client) nfs(t testing.TB, procedure uint32, list ...any) (status, *xdr) {
	t.Helper()
	x := c.call(t, programNFS, procedure, list...)
	s := status(x.uint32())
	if s != nfsOK {
		rest := *x
		for _, follow := range nfsProcedures[procedure].failure {
			if follow == 'w' {
				rest.wcc()
			} else {
				rest.postOp()
			}
		}
		if !rest.ok || rest.off != len(rest.b) {
			t.Errorf("procedure %d: after status %d follows %x", procedure, s, x.b[x.off:])
		}
	}
	return s, x
}

// must is nfs for a call that succeeds.
func (c *client) must(t testing.TB, procedure uint32, list ...any) *xdr {
	t.Helper()
	s, x := c.nfs(t, procedure, list...)
	if s != nfsOK {
		t.Fatalf("procedure %d %q: status %d", procedure, list, s)
	}
	return x
}

func (x *xdr) bytes(limit int) []byte {
	off, n := x.opaque(limit)
	return x.b[off : off+n]
}

func (x *xdr) uint64() uint64 {
	high := x.uint32()
	return uint64(high)<<32 | uint64(x.uint32())
}

// attrs are some of a file's attributes.
type attrs struct {
	kind, mode, links   uint32
	size, used, id      uint64
	mtime               uint64 // seconds
	accessed, changedAt uint64 // the seconds, and in the lower half the nanoseconds
}

// attributes reads a fattr3.
func (x *xdr) attrs() (a attrs) {
	a.kind, a.mode, a.links = x.uint32(), x.uint32(), x.uint32()
	x.skip(8)
	a.size, a.used = x.uint64(), x.uint64()
	x.skip(8 + 8)
	a.id = x.uint64()
	a.accessed = x.uint64()
	a.mtime = uint64(x.uint32())
	x.skip(4)
	a.changedAt = x.uint64()
	return a
}

// postOp reads a post_op_attr.
func (x *xdr) postOp() (a attrs) {
	if x.uint32() != 0 {
		return x.attrs()
	}
	return attrs{}
}

// wcc reads a wcc_data. before is nil if it has no attributes from before, and otherwise has three
// of them.
func (x *xdr) wcc() (before *attrs, after attrs) {
	if x.uint32() != 0 {
		before = &attrs{size: x.uint64(), mtime: uint64(x.uint32())}
		x.skip(4)
		before.changedAt = x.uint64()
	}
	return before, x.postOp()
}

func (c *client) mount(t testing.TB, path string) []byte {
	t.Helper()
	x := c.call(t, programMount, 1, path)
	if s := x.uint32(); s != 0 {
		t.Fatalf("mount %s: %d", path, s)
	}
	return x.bytes(handleMax)
}

func (c *client) lookup(t testing.TB, dir []byte, name string) []byte {
	t.Helper()
	return c.must(t, procLookup, dir, name).bytes(handleMax)
}

func (c *client) getattr(t testing.TB, handle []byte) attrs {
	t.Helper()
	return c.must(t, procGetattr, handle).attrs()
}

// noAttributes is an sattr3 that sets nothing.
var noAttributes = []any{0, 0, 0, 0, 0, 0}

func join(lists ...[]any) (all []any) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func (c *client) create(t testing.TB, dir []byte, name string) []byte {
	t.Helper()
	x := c.must(t, procCreate, join([]any{dir, name, createGuarded}, noAttributes)...)
	x.uint32()
	return x.bytes(handleMax)
}

func (c *client) mkdir(t testing.TB, dir []byte, name string) []byte {
	t.Helper()
	x := c.must(t, procMkdir, join([]any{dir, name, 1, 0o755}, noAttributes[1:])...)
	x.uint32()
	return x.bytes(handleMax)
}

func (c *client) write(t testing.TB, handle []byte, off uint64, data []byte, stable int) (committed uint32, verifier uint64) {
	t.Helper()
	x := c.must(t, procWrite, handle, off, len(data), stable, data)
	x.wcc()
	if n := x.uint32(); int(n) != len(data) {
		t.Errorf("%d bytes written of %d", n, len(data))
	}
	return x.uint32(), x.uint64()
}

func (c *client) read(t testing.TB, handle []byte, off uint64, n int) (data []byte, eof bool) {
	t.Helper()
	x := c.must(t, procRead, handle, off, n)
	x.postOp()
	x.uint32()
	eof = x.uint32() == 1
	return x.bytes(len(x.b)), eof
}

// list returns the names in a directory, by READDIRPLUS or READDIR with so many bytes a call.
func (c *client) list(t testing.TB, dir []byte, plus bool, size int) (names []string) {
	t.Helper()
	cookie, verifier := uint64(0), uint64(0)
	for {
		var x *xdr
		if plus {
			x = c.must(t, procReaddirplus, dir, cookie, verifier, size, size)
		} else {
			x = c.must(t, procReaddir, dir, cookie, verifier, size)
		}
		x.postOp()
		verifier = x.uint64()
		for x.uint32() == 1 {
			x.skip(8)
			names = append(names, string(x.bytes(nameMax)))
			cookie = x.uint64()
			if plus {
				x.postOp()
				if x.uint32() == 1 {
					x.opaque(handleMax)
				}
			}
		}
		if eof := x.uint32() == 1; !x.ok || eof {
			if !x.ok {
				t.Fatal("a truncated listing")
			}
			return names
		}
	}
}
