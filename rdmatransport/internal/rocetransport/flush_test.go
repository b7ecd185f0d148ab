package rocetransport_test

// FLUSH and ATOMIC WRITE against bytes written from IBTA annex A19.

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// TestFlushRequester checks the packets sent. Only the response acknowledges them, and each counts
// in max_rd_atomic.
func TestFlushRequester(t *testing.T) {
	c := config{goBackN: true, sqPSN: 0x000100, rd: 2, timeout: 14, retry: 7}
	to := verbs.SendWR{RemoteAddr: 0x1122334455667788, RKey: 0xaabbccdd, Flags: verbs.SendSignaled}
	const (
		flushed = "1c40 ffff 0000abcd 80000100 00000003 1122334455667788 aabbccdd 00001000"
		written = "1d40 ffff 0000abcd 80000101 1122334455667788 aabbccdd 00000008 0706050403020100"
		region  = "1c40 ffff 0000abcd 80000102 00000011 1122334455667788 aabbccdd 00000000"
	)
	post := func(r *rig) {
		copy(r.buf, []byte{7, 6, 5, 4, 3, 2, 1, 0})
		f, w, g := to, to, to
		f.WRID, f.Opcode, f.FlushType, f.FlushLength = 1, verbs.Flush, verbs.FlushGlobal|verbs.FlushPersistent, 0x1000
		w.WRID, w.Opcode, w.SGList = 2, verbs.AtomicWrite, []verbs.SGE{r.mr.SGE(0, 8)}
		g.WRID, g.Opcode, g.FlushType, g.FlushLevel = 3, verbs.Flush, verbs.FlushGlobal, verbs.FlushMR
		r.post(&f, &w, &g)
	}
	run(t, "answered", c, func(t *testing.T, r *rig) {
		post(r)
		r.expectBytes(flushed, written) // the third waits for max_rd_atomic
		r.giveBytes("1000 ffff 00Q 00000100 1f000001")
		r.completions(r.scq, "1 SUCCESS FLUSH 0")
		r.expectBytes(region)
		r.giveBytes("1000 ffff 00Q 00000101 1f000002")
		r.giveBytes("1000 ffff 00Q 00000102 1f000003")
		r.completions(r.scq, "2 SUCCESS ATOMIC_WRITE 0", "3 SUCCESS FLUSH 0")
	})
	run(t, "repeated", c, func(t *testing.T, r *rig) {
		post(r)
		r.expectBytes(flushed, written)
		sleep(80 * time.Millisecond)
		r.completions(r.scq)
		r.expectBytes(flushed, written)
		r.giveBytes("1000 ffff 00Q 00000101 1f000002") // the first answer is lost
		r.completions(r.scq)
		r.expectBytes(flushed, written)
		r.giveBytes("1100 ffff 00Q 00000100 1f000001") // an ACK does not answer it
		r.completions(r.scq)
	})
	run(t, "fence", c, func(t *testing.T, r *rig) {
		f, s := to, verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendFence}
		f.Opcode, f.FlushType, f.FlushLength = verbs.Flush, verbs.FlushGlobal|verbs.FlushPersistent, 0x1000
		r.post(&f, &s)
		r.expectBytes(flushed)
		r.giveBytes("1000 ffff 00Q 00000100 1f000001")
		r.expectBytes("0440 ffff 0000abcd 80000101")
	})
	run(t, "response with data", c, func(t *testing.T, r *rig) {
		post(r)
		r.giveBytes("1000 ffff 00Q 00000100 1f000001 00000000")
		r.completions(r.scq, "1 BAD_RESP_ERR", "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR")
	})
	run(t, "refused", c, func(t *testing.T, r *rig) {
		post(r)
		r.giveBytes("1100 ffff 00Q 00000100 62000000")
		r.completions(r.scq, "1 REM_ACCESS_ERR", "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR")
	})
	run(t, "bad lkey", c, func(t *testing.T, r *rig) {
		w := to
		w.WRID, w.Opcode, w.SGList = 1, verbs.AtomicWrite, []verbs.SGE{{Addr: r.mr.Addr(), Length: 8, LKey: r.mr.LKey() + 1}}
		r.post(&w)
		r.completions(r.scq, "1 LOC_PROT_ERR")
	})
}

// TestFlushResponder checks the answers. Duplicates are answered but not executed again.
func TestFlushResponder(t *testing.T) {
	bubble(t, config{goBackN: true, rqPSN: 0xfffffe, destRD: 2}, func(r *rig) {
		at := r.mr.Addr() + 16
		r.giveBytes("1c00 ffff 00Q 80fffffe 00000001 %016x %08x %08x", at, r.mr.RKey(), 100)
		r.expectBytes("1040 ffff 0000abcd 00fffffe 1f000001")
		atomic := fmt.Sprintf("1d00 ffff 00Q 80ffffff %016x %08x 00000008 %016x", at, r.mr.RKey(), uint64(0x0123456789abcdef))
		r.giveBytes("%s", atomic)
		r.expectBytes("1040 ffff 0000abcd 00ffffff 1f000002")
		word := r.buf[16:24]
		if got := binary.BigEndian.Uint64(word); got != 0x0123456789abcdef {
			t.Errorf("memory has %#x", got)
		}
		clear(word)
		r.giveBytes("%s", atomic)
		r.expectBytes("1040 ffff 0000abcd 00ffffff 1f000002")
		if got := binary.BigEndian.Uint64(word); got != 0 {
			t.Errorf("a duplicate wrote %#x", got)
		}
		// For a whole region, address and length are ignored.
		r.giveBytes("1c00 ffff 00Q 80000000 00000011 ffffffffffffffff %08x ffffffff", r.mr.RKey())
		r.expectBytes("1040 ffff 0000abcd 00000000 1f000003")
		// A request older than the last max_dest_rd_atomic ones is no duplicate for which a
		// requester could still wait.
		r.giveBytes("1c00 ffff 00Q 80fffffe 00000001 %016x %08x %08x", at, r.mr.RKey(), 100)
		r.expectBytes()
		r.giveBytes("1c00 ffff 00Q 80000000 00000011 ffffffffffffffff %08x ffffffff", r.mr.RKey())
		r.expectBytes("1040 ffff 0000abcd 00000000 1f000003")
	})
}

// TestFlushRefused checks the NAK for each error.
func TestFlushRefused(t *testing.T) {
	const invalid, access = 0x61, 0x62
	for _, x := range []struct {
		name string
		c    config
		say  string // A and K: the address and key of the region of 4096 bytes
		nak  int
	}{
		{"no placement", config{}, "1c00 ffff 00Q 80000000 00000000 A K 00000001", invalid},
		{"reserved placement", config{}, "1c00 ffff 00Q 80000000 00000005 A K 00000001", invalid},
		{"reserved selectivity", config{}, "1c00 ffff 00Q 80000000 00000021 A K 00000001", invalid},
		{"no resources", config{destRD: none}, "1c00 ffff 00Q 80000000 00000001 A K 00000001", invalid},
		{"no access right of the QP", config{access: allAccess &^ verbs.AccessFlushGlobal},
			"1c00 ffff 00Q 80000000 00000001 A K 00000001", invalid},
		{"no access right of the region", config{mrAccess: allAccess &^ verbs.AccessFlushGlobal},
			"1c00 ffff 00Q 80000000 00000001 A K 00000001", access},
		{"no access right of the region, as a whole", config{mrAccess: allAccess &^ verbs.AccessFlushGlobal},
			"1c00 ffff 00Q 80000000 00000011 A K 00000001", access},
		{"persistence of ordinary memory", config{access: allAccess | verbs.AccessFlushPersistent},
			"1c00 ffff 00Q 80000000 00000002 A K 00000001", access},
		{"too long", config{}, "1c00 ffff 00Q 80000000 00000001 A K 00001001", access},
		{"unknown key", config{}, "1c00 ffff 00Q 80000000 00000001 A 00000000 00000001", access},
		{"unknown key of 0 bytes", config{}, "1c00 ffff 00Q 80000000 00000001 A 00000000 00000000", access},
		{"key of a window", config{}, "1c00 ffff 00Q 80000000 00000001 A ffffffff 00000001", access},
		{"atomic write of 4 bytes", config{}, "1d00 ffff 00Q 80000000 A K 00000004 11111111", invalid},
		{"atomic write of 16 bytes", config{}, "1d00 ffff 00Q 80000000 A K 00000010 11111111111111111111111111111111", invalid},
		{"atomic write without access right", config{access: allAccess &^ verbs.AccessRemoteWrite},
			"1d00 ffff 00Q 80000000 A K 00000008 1111111111111111", invalid},
		{"atomic write without resources", config{destRD: none}, "1d00 ffff 00Q 80000000 A K 00000008 1111111111111111", invalid},
		{"atomic write to read-only memory", config{mrAccess: verbs.AccessRemoteRead},
			"1d00 ffff 00Q 80000000 A K 00000008 1111111111111111", access},
		{"atomic write across words", config{}, "1d00 ffff 00Q 80000000 B K 00000008 1111111111111111", invalid},
		{"in a SEND", config{}, "0000 ffff 00Q 00000000", invalid},
	} {
		x.c.goBackN, x.c.size, x.c.mtu = true, 4096, verbs.MTU256
		run(t, x.name, x.c, func(t *testing.T, r *rig) {
			psn := 0
			if x.name == "in a SEND" {
				r.recv(1, 0, 4096)
				r.giveBytes("%s %0512x", x.say, 1)
				r.expectBytes()
				x.say, psn = "1c00 ffff 00Q 80000001 00000001 A K 00000001", 1
			}
			was := string(r.buf)
			digits := ""
			for _, d := range x.say {
				switch d {
				case 'A':
					digits += fmt.Sprintf("%016x", r.mr.Addr())
				case 'B':
					digits += fmt.Sprintf("%016x", r.mr.Addr()+4)
				case 'K':
					digits += fmt.Sprintf("%08x", r.mr.RKey())
				default:
					digits += string(d)
				}
			}
			r.giveBytes("%s", digits)
			r.expectBytes(fmt.Sprintf("1140 ffff 0000abcd 00%06x %02x000000", psn, x.nak))
			r.state(verbs.StateErr)
			if string(r.buf) != was {
				t.Error("memory has changed")
			}
		})
	}
}

// TestFlushFile checks that only a region of a file can be made persistent, in part and as a whole.
func TestFlushFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no mmap on this system")
	}
	persistent := allAccess | verbs.AccessFlushPersistent
	bubble(t, config{goBackN: true, access: persistent}, func(r *rig) {
		if _, err := r.pd.RegMR(make([]byte, 10), persistent); err == nil {
			t.Error("ordinary memory is registered as persistent")
		}
		f := must(os.Create(filepath.Join(t.TempDir(), "region")))
		defer f.Close()
		if err := f.Truncate(1 << 16); err != nil {
			t.Fatal(err)
		}
		mr := must(r.pd.RegMREx(&verbs.MRInitAttr{File: f, FileLength: 1 << 16, Access: persistent}))
		r.giveBytes("0a00 ffff 00Q 00000000 %016x %08x 00000004 66696c65", mr.Addr()+5001, mr.RKey())
		r.giveBytes("1c00 ffff 00Q 80000001 00000002 %016x %08x 00000004", mr.Addr()+5001, mr.RKey())
		r.giveBytes("1c00 ffff 00Q 80000002 00000012 0000000000000000 %08x 00000000", mr.RKey())
		r.giveBytes("1c00 ffff 00Q 80000003 00000002 %016x %08x 00000000", mr.Addr(), mr.RKey())
		synctest.Wait()
		r.expectBytes("1040 ffff 0000abcd 00000001 1f000002", "1040 ffff 0000abcd 00000002 1f000003",
			"1040 ffff 0000abcd 00000003 1f000004")
		b := make([]byte, 4)
		if _, err := f.ReadAt(b, 5001); err != nil || string(b) != "file" {
			t.Errorf("the file has %q, %v", b, err)
		}
		if err := mr.Rereg(verbs.ReregAccess, nil, nil, allAccess); err != nil {
			t.Error(err)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	})
}
