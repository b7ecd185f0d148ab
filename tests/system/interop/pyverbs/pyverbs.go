//go:build linux

// Package pyverbs gives a test the verbs of a kernel device in a peer, with the types of package
// verbs. A script in the peer executes one command at a time.
package pyverbs

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/tests/system/interop/peer/control"
	"github.com/softrnic/softrnic/verbs"
)

//go:embed driver.py
var driver []byte

// Device is an open kernel RDMA device. Methods that must succeed in a valid test end the test if
// they fail. Others return an error with the errno. It is for the test's own goroutine.
type Device struct {
	t       testing.TB
	process *control.Process
	answers *bufio.Reader
}

// Open opens a device of a peer, such as "rxe0", until the test ends.
func Open(t testing.TB, p *peer.Peer, name string) *Device {
	t.Helper()
	return start(t, p, "driver.py", name)
}

// start starts a script, with all of them in the peer.
func start(t testing.TB, p *peer.Peer, script, name string) *Device {
	t.Helper()
	const dir = "/tmp/"
	for file, text := range map[string][]byte{"driver.py": driver, "cm.py": cmDriver} {
		if err := p.Put(t.Context(), dir+file, text); err != nil {
			t.Fatal(err)
		}
	}
	process, err := p.Start("exec python3 " + dir + script + " " + name)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{t: t, process: process, answers: bufio.NewReader(process)}
	t.Cleanup(func() { _ = process.Kill() })
	if err := d.answer(nil); err != nil {
		t.Fatal(err)
	}
	return d
}

// In returns the same device for a subtest: failures then end the subtest.
func (d *Device) In(t testing.TB) *Device {
	sub := *d
	sub.t = t
	return &sub
}

type arguments map[string]any

// call executes a command. The error is the device's; any other failure ends the test.
func (d *Device) call(op string, args arguments, result any) error {
	d.t.Helper()
	command := arguments{"op": op}
	for k, v := range args {
		command[k] = v
	}
	line, err := json.Marshal(command)
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.process.Write(append(line, '\n')); err != nil {
		d.t.Fatal(err)
	}
	return d.answer(result)
}

func (d *Device) answer(result any) error {
	d.t.Helper()
	line, err := d.answers.ReadBytes('\n')
	if err != nil {
		d.t.Fatalf("pyverbs ended: %v\n%s", err, d.process.Output())
	}
	var a struct {
		Result json.RawMessage
		Error  string
		Errno  int
	}
	if err := json.Unmarshal(line, &a); err != nil {
		d.t.Fatalf("pyverbs: %v\n%s", err, d.process.Output())
	}
	switch {
	case a.Errno != 0:
		return fmt.Errorf("%s: %w", a.Error, syscall.Errno(a.Errno))
	case a.Error != "":
		d.t.Fatalf("pyverbs: %s", a.Error)
	case result != nil:
		if err := json.Unmarshal(a.Result, result); err != nil {
			d.t.Fatalf("pyverbs: %v: %s", err, line)
		}
	}
	return nil
}

// must is call for a command that must succeed.
func (d *Device) must(op string, args arguments, result any) {
	d.t.Helper()
	if err := d.call(op, args, result); err != nil {
		d.t.Fatalf("%s: %v", op, err)
	}
}

// GIDs returns the GID table as addresses, IPv4 addresses as such.
func (d *Device) GIDs() []netip.Addr {
	d.t.Helper()
	var gids []netip.Addr
	d.must("gids", nil, &gids)
	for i, gid := range gids {
		gids[i] = gid.Unmap()
	}
	return gids
}

// Counters is a snapshot of port 1's hw_counters by name, at most 10 ms old.
func (d *Device) Counters() map[string]uint64 {
	d.t.Helper()
	var counters map[string]uint64
	d.must("counters", nil, &counters)
	return counters
}

// PD is a protection domain.
type PD struct {
	d  *Device
	id int
}

// AllocPD allocates a protection domain.
func (d *Device) AllocPD() *PD {
	d.t.Helper()
	pd := &PD{d: d}
	d.must("alloc_pd", nil, &pd.id)
	return pd
}

// MR is a memory region with its own memory.
type MR struct {
	d          *Device
	id, length int
	addr       uint64
	lkey, rkey uint32
}

// RegMR registers length bytes, all zero.
func (pd *PD) RegMR(length int, access verbs.Access) *MR {
	pd.d.t.Helper()
	mr, err := pd.TryRegMR(length, access)
	if err != nil {
		pd.d.t.Fatalf("reg_mr: %v", err)
	}
	return mr
}

// TryRegMR is RegMR for access that a device may refuse.
func (pd *PD) TryRegMR(length int, access verbs.Access) (*MR, error) {
	pd.d.t.Helper()
	var made struct {
		ID         int
		Addr       uint64
		LKey, RKey uint32
	}
	err := pd.d.call("reg_mr", arguments{"pd": pd.id, "length": length, "access": access}, &made)
	return &MR{d: pd.d, id: made.ID, length: length, addr: made.Addr, lkey: made.LKey, rkey: made.RKey}, err
}

// Length, Addr, LKey, RKey and SGE are as in verbs.MR.
func (mr *MR) Length() int  { return mr.length }
func (mr *MR) Addr() uint64 { return mr.addr }
func (mr *MR) LKey() uint32 { return mr.lkey }
func (mr *MR) RKey() uint32 { return mr.rkey }
func (mr *MR) SGE(off, n int) verbs.SGE {
	return verbs.SGE{Addr: mr.addr + uint64(off), Length: uint32(n), LKey: mr.lkey}
}

// Write writes data into the memory.
func (mr *MR) Write(off int, data []byte) {
	mr.d.t.Helper()
	mr.d.must("write", arguments{"mr": mr.id, "offset": off, "data": data}, nil)
}

// Read returns a copy of n bytes of the memory.
func (mr *MR) Read(off, n int) (data []byte) {
	mr.d.t.Helper()
	mr.d.must("read", arguments{"mr": mr.id, "offset": off, "length": n}, &data)
	return data
}

// Fill writes n bytes that look random but are derived from a seed: SHAKE128 of its eight bytes,
// big-endian.
func (mr *MR) Fill(off, n int, seed uint64) {
	mr.d.t.Helper()
	mr.d.must("fill", arguments{"mr": mr.id, "offset": off, "length": n, "seed": seed}, nil)
}

// Digest is the SHA-256 of n bytes, in hexadecimal.
func (mr *MR) Digest(off, n int) (digest string) {
	mr.d.t.Helper()
	mr.d.must("digest", arguments{"mr": mr.id, "offset": off, "length": n}, &digest)
	return digest
}

// MW is a memory window.
type MW struct {
	d    *Device
	id   int
	rkey uint32
}

// AllocMW allocates a window that is not bound.
func (pd *PD) AllocMW(kind verbs.MWType) *MW {
	pd.d.t.Helper()
	var made struct {
		ID   int
		RKey uint32
	}
	pd.d.must("alloc_mw", arguments{"pd": pd.id, "kind": kind}, &made)
	return &MW{d: pd.d, id: made.ID, rkey: made.RKey}
}

// RKey is as in verbs.MW.
func (mw *MW) RKey() uint32 { return mw.rkey }

// Dealloc ends the window.
func (mw *MW) Dealloc() {
	mw.d.t.Helper()
	mw.d.must("close", arguments{"obj": mw.id}, nil)
}

// BindMW posts the binding of a window to a part of a region, of either type, as work request id.
func (qp *QP) BindMW(mw *MW, id uint64, mr *MR, off, n int, access verbs.Access) error {
	qp.d.t.Helper()
	return qp.d.call("bind_mw", arguments{"qp": qp.id, "mw": mw.id, "wr_id": id, "mr": mr.id, "offset": off, "length": n,
		"access": access}, &mw.rkey)
}

// QP is an RC QP with a CQ for each queue.
type QP struct {
	d   *Device
	id  int
	num uint32
}

// CreateQP creates a QP in state RESET. A kernel device may make its queues larger than requested.
// Its CQs are as large as the queues.
func (pd *PD) CreateQP(size verbs.QPCap) *QP {
	pd.d.t.Helper()
	qp, err := pd.createQP(size, false)
	if err != nil {
		pd.d.t.Fatalf("create_qp: %v", err)
	}
	return qp
}

// CreateFlushQP is CreateQP for a QP to which FLUSHes can be posted. The error says that the device
// has none.
func (pd *PD) CreateFlushQP(size verbs.QPCap) (*QP, error) {
	pd.d.t.Helper()
	return pd.createQP(size, true)
}

func (pd *PD) createQP(size verbs.QPCap, flushes bool) (*QP, error) {
	pd.d.t.Helper()
	var made struct {
		ID  int
		Num uint32
	}
	err := pd.d.call("create_qp", arguments{"pd": pd.id, "send_wr": size.MaxSendWR, "recv_wr": size.MaxRecvWR,
		"sge": max(size.MaxSendSGE, size.MaxRecvSGE), "inline": size.MaxInlineData, "flushes": flushes}, &made)
	return &QP{d: pd.d, id: made.ID, num: made.Num}, err
}

// Num is the QP number.
func (qp *QP) Num() uint32 { return qp.num }

// Modify is ibv_modify_qp.
func (qp *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	qp.d.t.Helper()
	return qp.d.call("modify", arguments{"qp": qp.id, "attr": attr, "mask": mask}, nil)
}

// State asks the device for the state.
func (qp *QP) State() (state verbs.QPState) {
	qp.d.t.Helper()
	qp.d.must("state", arguments{"qp": qp.id}, &state)
	return state
}

// PostSend posts requests one by one, up to the first that is refused.
func (qp *QP) PostSend(wrs ...*verbs.SendWR) error {
	qp.d.t.Helper()
	for _, wr := range wrs {
		if err := qp.d.call("post_send", arguments{"qp": qp.id, "wr": wr}, nil); err != nil {
			return err
		}
	}
	return nil
}

// PostRecv posts requests one by one, up to the first that is refused.
func (qp *QP) PostRecv(wrs ...*verbs.RecvWR) error {
	qp.d.t.Helper()
	for _, wr := range wrs {
		if err := qp.d.call("post_recv", arguments{"qp": qp.id, "wr": wr}, nil); err != nil {
			return err
		}
	}
	return nil
}

// PollSend polls the send CQ until n completions have arrived or the timeout is over.
func (qp *QP) PollSend(n int, timeout time.Duration) []verbs.WC {
	qp.d.t.Helper()
	return qp.poll(0, n, timeout)
}

// PollRecv polls the receive CQ until n completions have arrived or the timeout is over.
func (qp *QP) PollRecv(n int, timeout time.Duration) []verbs.WC {
	qp.d.t.Helper()
	return qp.poll(1, n, timeout)
}

func (qp *QP) poll(queue, n int, timeout time.Duration) (wcs []verbs.WC) {
	qp.d.t.Helper()
	qp.d.must("poll", arguments{"qp": qp.id, "queue": queue, "n": n, "timeout": timeout.Seconds()}, &wcs)
	return wcs
}

// Destroy destroys the QP and its CQs.
func (qp *QP) Destroy() {
	qp.d.t.Helper()
	qp.d.must("close", arguments{"obj": qp.id}, nil)
}
