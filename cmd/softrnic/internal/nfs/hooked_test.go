package nfs

import (
	"context"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// hookedStore calls functions of a test before operations of a store. Their errors are those of the
// operations. Functions that are nil are not called.
type hookedStore struct {
	store
	open, remove, sync, syncFile func(name string) error
	write                        func(name string, off int64) error
}

func call1(f func(string) error, name string) error {
	if f == nil {
		return nil
	}
	return f(name)
}

func (s *hookedStore) Open(name string, write bool) (storeFile, error) {
	if err := call1(s.open, name); err != nil {
		return nil, err
	}
	f, err := s.store.Open(name, write)
	if err != nil {
		return nil, err
	}
	return &hookedFile{f, s, name}, nil
}

func (s *hookedStore) Remove(name string) error {
	if err := call1(s.remove, name); err != nil {
		return err
	}
	return s.store.Remove(name)
}

func (s *hookedStore) Sync(name string) error {
	if err := call1(s.sync, name); err != nil {
		return err
	}
	return s.store.Sync(name)
}

// hookedFile is a file of a hookedStore, with the name by which it was opened.
type hookedFile struct {
	storeFile
	s    *hookedStore
	name string
}

func (f *hookedFile) Sync() error {
	if err := call1(f.s.syncFile, f.name); err != nil {
		return err
	}
	return f.storeFile.Sync()
}

func (f *hookedFile) WriteAt(b []byte, off int64) (int, error) {
	if f.s.write != nil {
		if err := f.s.write(f.name, off); err != nil {
			return 0, err
		}
	}
	return f.storeFile.WriteAt(b, off)
}

// from makes a call as the client with an address. The reply is nil if ctx ends before.
func from(ctx context.Context, e *export, addr string, call []byte) []byte {
	return e.HandleRPC(ctx, &rpcrdma.Call{Message: call, PeerAddr: netip.AddrPortFrom(netip.MustParseAddr(addr), 1)})
}

// statusIn returns the status in a reply to a call of NFS.
func statusIn(t testing.TB, reply []byte) status {
	t.Helper()
	if outcome, ok := result(reply); !ok || outcome != acceptSuccess {
		t.Fatalf("the reply is %x", reply)
	}
	return status((&xdr{b: reply, off: resultOffset, ok: true}).uint32())
}
