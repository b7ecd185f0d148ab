package nfs

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// hookedStore calls functions of a test before operations of a store, with the name of the file, or
// the first one that it has had. Their errors are those of the operations. Functions that are nil
// are not called.
type hookedStore struct {
	store
	open, remove, sync, list                func(name string) error
	syncFile, closeFile, statFile, truncate func(name string) error
	lookup                                  func(name string) error // of the entry
	write                                   func(name string, off int64) error

	mu    sync.Mutex
	names map[identity]string
}

func call1(f func(string) error, name string) error {
	if f == nil {
		return nil
	}
	return f(name)
}

// hooked returns an inode whose operations have the hooks. Its name is that of an entry of a
// directory.
func (s *hookedStore) hooked(n inode, err error, dir, name string) (inode, error) {
	if err != nil {
		return nil, err
	}
	a, err := n.Attributes()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = map[identity]string{}
	}
	if dir != "" && dir != "." {
		name = dir + "/" + name
	}
	if known := s.names[a.identity]; known != "" && name == "" {
		name = known
	}
	if name != "" {
		s.names[a.identity] = name
	}
	return &hookedInode{n, s, name}, nil
}

func (s *hookedStore) Root() (inode, error) {
	n, err := s.store.Root()
	return s.hooked(n, err, "", ".")
}

func (s *hookedStore) Find(handle []byte) (inode, error) {
	n, err := s.store.Find(handle)
	return s.hooked(n, err, "", "")
}

// hookedInode is an inode of a hookedStore.
type hookedInode struct {
	inode
	s    *hookedStore
	name string
}

func (n *hookedInode) Lookup(name string) (inode, error) {
	if err := call1(n.s.lookup, name); err != nil {
		return nil, err
	}
	child, err := n.inode.Lookup(name)
	return n.s.hooked(child, err, n.name, name)
}

func (n *hookedInode) Create(name string, set *sattr) (inode, storeFile, error) {
	child, f, err := n.inode.Create(name, set)
	if err != nil {
		return nil, nil, err
	}
	child, err = n.s.hooked(child, nil, n.name, name)
	if err != nil {
		return nil, nil, err
	}
	return child, &hookedFile{f, n.s, child.(*hookedInode).name}, nil
}

func (n *hookedInode) Mkdir(name string, set *sattr) (inode, error) {
	child, err := n.inode.Mkdir(name, set)
	return n.s.hooked(child, err, n.name, name)
}

func (n *hookedInode) Symlink(target, name string) (inode, error) {
	child, err := n.inode.Symlink(target, name)
	return n.s.hooked(child, err, n.name, name)
}

func (n *hookedInode) Mknod(name string, k kind, set *sattr) (inode, error) {
	child, err := n.inode.Mknod(name, k, set)
	return n.s.hooked(child, err, n.name, name)
}

func (n *hookedInode) Link(file inode, name string) error {
	return n.inode.Link(file.(*hookedInode).inode, name)
}

func (n *hookedInode) Rename(from string, to inode, name string) error {
	return n.inode.Rename(from, to.(*hookedInode).inode, name)
}

func (n *hookedInode) Open(write bool) (storeFile, error) {
	if err := call1(n.s.open, n.name); err != nil {
		return nil, err
	}
	f, err := n.inode.Open(write)
	if err != nil {
		return nil, err
	}
	return &hookedFile{f, n.s, n.name}, nil
}

func (n *hookedInode) Remove(name string, directory bool) error {
	if err := call1(n.s.remove, name); err != nil {
		return err
	}
	return n.inode.Remove(name, directory)
}

func (n *hookedInode) List(each func(string, uint64)) error {
	if err := call1(n.s.list, n.name); err != nil {
		return err
	}
	return n.inode.List(each)
}

func (n *hookedInode) Sync() error {
	if err := call1(n.s.sync, n.name); err != nil {
		return err
	}
	return n.inode.Sync()
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

func (f *hookedFile) Close() error {
	if err := call1(f.s.closeFile, f.name); err != nil {
		return err
	}
	return f.storeFile.Close()
}

func (f *hookedFile) Attributes() (attributes, error) {
	if err := call1(f.s.statFile, f.name); err != nil {
		return attributes{}, err
	}
	return f.storeFile.Attributes()
}

func (f *hookedFile) Truncate(size int64) error {
	if err := call1(f.s.truncate, f.name); err != nil {
		return err
	}
	return f.storeFile.Truncate(size)
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

// offset of the results in a reply that was accepted, with an empty verifier.
const resultOffset = 24

// result returns the outcome of an accepted reply.
func result(reply []byte) (outcome uint32, ok bool) {
	if len(reply) < resultOffset {
		return 0, false
	}
	const msgAccepted = 0
	return binary.BigEndian.Uint32(reply[resultOffset-4:]), binary.BigEndian.Uint32(reply[8:]) == msgAccepted
}

// statusIn returns the status in a reply to a call of NFS.
func statusIn(t testing.TB, reply []byte) status {
	t.Helper()
	if outcome, ok := result(reply); !ok || outcome != acceptSuccess {
		t.Fatalf("the reply is %x", reply)
	}
	return status((&xdr{b: reply, off: resultOffset, ok: true}).uint32())
}
