package nfs

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// openDescriptors returns the number of descriptors of the process, where that is known.
func openDescriptors() int {
	l, _ := os.ReadDir("/proc/self/fd")
	return len(l)
}

// FuzzHandles: calls with arbitrary handles for a directory are answered. They lead to nothing
// outside, and leave no descriptors open and no memory in use. The input is a handle, to which the
// export is added, as a client knows that.
func FuzzHandles(f *testing.F) {
	top := f.TempDir()
	dir := filepath.Join(top, "export")
	ok(f, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755))
	ok(f, os.WriteFile(filepath.Join(dir, "a", "b", "file"), []byte("inside"), 0o644))
	ok(f, os.WriteFile(filepath.Join(top, "secret"), []byte("secret"), 0o644))
	ok(f, os.Symlink("../secret", filepath.Join(dir, "link")))
	e := newExport(opened(f, dir), "/", false)
	f.Cleanup(func() { ok(f, e.close()) })
	c := local(e)
	root := c.mount(f, "/")
	at := root
	f.Add(root)
	f.Add(c.lookup(f, root, "link"))
	for _, name := range []string{"a", "b", "file"} {
		at = c.lookup(f, at, name)
		f.Add(at)
	}
	outside, err := openDirectory(top)
	ok(f, err)
	n, err := outside.walk([]string{"secret"})
	ok(f, err)
	f.Add(n.Handle())
	ok(f, n.Close())
	ok(f, outside.Close())
	known := len(e.store.(*directory).handles.nodes)
	f.Fuzz(func(t *testing.T, handle []byte) {
		handle = handle[:min(len(handle), handleMax)]
		if len(handle) >= handleFixed {
			copy(handle[4:12], root[4:12])
		}
		before := openDescriptors()
		for procedure, list := range map[uint32][]any{procGetattr: {handle}, procLookup: {handle, "file"}, procReadlink: {handle},
			procReaddirplus: {handle, uint64(0), uint64(0), 4096, 4096}, procCommit: {handle, uint64(0), 0}, procRename: {handle, "x", handle, "y"},
			procRead: {handle, uint64(0), 10}} {
			s, x := c.nfs(t, procedure, list...)
			if procedure == procRead && s == nfsOK {
				x.postOp()
				x.skip(8)
				if got := x.bytes(10); string(got) != "inside" {
					t.Errorf("%x leads to %q", handle, got)
				}
			}
		}
		if after := openDescriptors(); after > before+maxKept {
			t.Errorf("%d descriptors, and %d before", after, before)
		}
		if n := len(e.store.(*directory).handles.nodes); n > known+10 {
			t.Errorf("%d files are known, and %d at first", n, known)
		}
	})
}

// FuzzPorts: arbitrary streams to the ports for MOUNT and for the port mapper are answered, or
// end, and a short stream does not make the server use much memory. The first byte chooses the
// port.
func FuzzPorts(f *testing.F) {
	e := newExport(newMemory(1<<20), "/", false)
	f.Cleanup(func() { ok(f, e.close()) })
	record := func(last bool, fragments ...[]byte) (b []byte) {
		for i, fragment := range fragments {
			mark := uint32(len(fragment))
			if last && i == len(fragments)-1 {
				mark |= lastFragment
			}
			b = append(words(b, mark), fragment...)
		}
		return b
	}
	mount := callOf(1, programMount, version3, mountMnt, "/")
	getport := callOf(2, programPortmap, portmapVersion, portmapGetport, programMount, version3, protocolTCP, 0)
	dump := callOf(3, programPortmap, portmapVersion, portmapDump)
	for _, b := range [][]byte{record(true, mount), record(true, mount[:8], mount[8:]), record(true, getport), record(true, dump),
		append(record(true, getport), record(true, dump)...), record(false, mount), words(nil, maxShortCall), words(nil, 0xffffffff)} {
		for port := range byte(2) {
			f.Add(append([]byte{port}, b...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		var h rpcrdma.Handler = portmap{defaultMountTCP}
		if b[0]&1 == 0 {
			h = onlyMount(e)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		stream := &recordReader{r: bytes.NewReader(b[1:]), limit: maxShortCall}
		for {
			call, err := stream.read()
			if err != nil {
				break
			}
			if len(call) > maxShortCall {
				t.Fatalf("a call of %d bytes", len(call))
			}
			reply := h.HandleRPC(t.Context(), &rpcrdma.Call{Message: call})
			if reply != nil && (len(reply) < 12 || !bytes.Equal(reply[:4], call[:4]) || binary.BigEndian.Uint32(reply[4:]) != 1) {
				t.Fatalf("%x is answered by %x", call, reply)
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > uint64(1<<20+100*len(b)) {
			t.Errorf("%d bytes of memory for a stream of %d", n, len(b))
		}
	})
}
