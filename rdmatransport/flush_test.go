package rdmatransport_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestFlush writes data into a peer's file as a database does: a WRITE of the data, a FLUSH, and an
// ATOMIC WRITE of a pointer to it.
func TestFlush(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no mmap on this system")
	}
	overMedia(t, flush)
}

func flush(t *testing.T, m medium) {
	a, b := m.stations(t, nil)
	qa, _ := dial(a, b, verbs.RoCEv2, nil)
	am := a.reg(make([]byte, 8192), everyAccess)
	f := must(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer f.Close()
	ok(t, f.Truncate(8192))
	bm := must(b.pd.RegMREx(&verbs.MRInitAttr{
		File: f, FileLength: 8192, Access: everyAccess | verbs.AccessFlushGlobal | verbs.AccessFlushPersistent,
	}))(t)
	defer bm.Close()
	copy(am.Buf(), "recorded")
	binary.NativeEndian.PutUint64(am.Buf()[4096:], 8)

	ok(t, qa.QP().PostSend(
		&verbs.SendWR{WRID: 1, Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{am.SGE(0, 3000)}, RemoteAddr: bm.Addr() + 4096, RKey: bm.RKey()},
		&verbs.SendWR{WRID: 2, Opcode: verbs.Flush, FlushType: verbs.FlushPersistent, FlushLength: 3000, Flags: verbs.SendSignaled,
			RemoteAddr: bm.Addr() + 4096, RKey: bm.RKey()},
		&verbs.SendWR{WRID: 3, Opcode: verbs.AtomicWrite, SGList: []verbs.SGE{am.SGE(4096, 8)}, Flags: verbs.SendSignaled | verbs.SendInline,
			RemoteAddr: bm.Addr(), RKey: bm.RKey()},
		&verbs.SendWR{WRID: 4, Opcode: verbs.Flush, FlushType: verbs.FlushPersistent | verbs.FlushGlobal, FlushLevel: verbs.FlushMR,
			Flags: verbs.SendSignaled, RKey: bm.RKey()}))
	for id := uint64(2); id <= 4; id++ {
		if wc := poll(t, qa.QP().SendCQ()); wc.WRID != id || wc.Status != verbs.WCSuccess {
			t.Fatalf("%+v", wc)
		}
	}
	got := must(os.ReadFile(f.Name()))(t)
	if n := binary.NativeEndian.Uint64(got); n != 8 || string(got[4096:4096+n]) != "recorded" {
		t.Errorf("the file has %d, %q", n, got[4096:4104])
	}
}
