package target_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// Data of each size comes back as it was written, over each medium, in the capsule and by key.
func TestReadWrite(t *testing.T) {
	t.Parallel()
	media := stacktest.Media
	if !stacktest.InSystem() {
		media = media[:1]
	}
	for _, m := range media {
		t.Run(m.Name, func(t *testing.T) {
			both(t, func(t *testing.T, transport verbs.Transport) {
				var devs [2]*verbs.Device
				a, b := m.Hosts(t)
				for i, end := range []stacktest.End{a, b} {
					dev, err := rdmatransport.Open(end.Host, nil)
					ok(t, err)
					t.Cleanup(func() {
						dev.Close()
						end.Host.Close()
					})
					devs[i] = dev
				}
				readWrite(t, labOn(t, devs[0], devs[1], a.Addr, transport, nil))
			})
		})
	}
}

func readWrite(t *testing.T, l *lab) {
	q := l.associate(1, 0).io[0]
	const half = dataSize / 2
	for _, blocks := range []uint32{1, 8, 16, 127, 128, 129, 1000, 2048} {
		n := int(blocks) * 512
		want := make([]byte, n)
		_, _ = rand.Read(want)
		copy(q.data.Buf()[half:], want)
		write := rw(nvme.Write, 7, blocks)
		write.SGL = q.keyed(half, n)
		q.want(write, nil, nvme.Success)
		if got, done := q.reads(rw(nvme.Read, 7, blocks), n); done.Status != nvme.Success || !bytes.Equal(got, want) {
			t.Errorf("%d blocks: %v, the data is right: %v", blocks, done.Status, bytes.Equal(got, want))
		}
		if n > 8192 {
			continue
		}
		_, _ = rand.Read(want)
		write.SGL = nvme.InCapsule(uint32(n))
		q.want(write, want, nvme.Success)
		if got, done := q.reads(rw(nvme.Read, 7, blocks), n); done.Status != nvme.Success || !bytes.Equal(got, want) {
			t.Errorf("%d blocks in the capsule: %v, the data is right: %v", blocks, done.Status, bytes.Equal(got, want))
		}
	}
}

// The other I/O commands, and the statuses of wrong ones.
func TestIOCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	disk, err := target.OpenFile(file, &target.FileConfig{Size: 4 << 20})
	ok(t, err)
	defer disk.Close()
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{
		{Backend: target.NewMemory(4 << 20)}, {Backend: disk}, {Backend: target.NewMemory(1 << 20), ReadOnly: true, BlockSize: 4096},
	}})
	q := l.associate(1, 0).io[0]
	for nsid := range uint32(2) {
		on := func(c nvme.Command) nvme.Command {
			c.NSID = nsid + 1
			return c
		}
		block := bytes.Repeat([]byte("block   "), 64)
		for lba := range uint64(4) {
			w := on(rw(nvme.Write, lba, 1))
			w.SGL = nvme.InCapsule(512)
			if lba == 3 {
				w.CDW12 |= nvme.ForceUnitAccess
			}
			q.want(w, block, nvme.Success)
		}
		compare := on(rw(nvme.Compare, 2, 1))
		compare.SGL = nvme.InCapsule(512)
		q.want(compare, block, nvme.Success)
		q.want(compare, make([]byte, 512), nvme.CompareFailure)
		copy(q.data.Buf(), block)
		compare.SGL = q.keyed(0, 512)
		q.want(compare, nil, nvme.Success)
		q.data.Buf()[511] ^= 1
		q.want(compare, nil, nvme.CompareFailure)

		q.want(on(nvme.Command{Opcode: nvme.Flush}), nil, nvme.Success)
		q.want(on(rw(nvme.WriteZeroes, 1, 1)), nil, nvme.Success)
		discard := nvme.Command{Opcode: nvme.DatasetManagement, NSID: nsid + 1, CDW10: 1, CDW11: nvme.DSMDeallocate}
		first, second := nvme.DSMRange{SLBA: 0, Blocks: 1}, nvme.DSMRange{SLBA: 2, Blocks: 1}
		discard.SGL = nvme.InCapsule(4096) // as Linux sends it: longer than the ranges
		q.want(discard, slices.Concat(first.Append(nil), second.Append(nil), make([]byte, 4096-32)), nvme.Success)
		got, done := q.reads(on(rw(nvme.Read, 0, 4)), 4*512)
		ok(t, done.Status.Err())
		if want := slices.Concat(make([]byte, 3*512), block); !bytes.Equal(got, want) {
			t.Errorf("namespace %d: wrong content after Write Zeroes and deallocation", nsid+1)
		}
		w := on(rw(nvme.WriteZeroes, 3, 1))
		w.CDW12 |= nvme.Deallocate
		q.want(w, nil, nvme.Success)
		if got, _ := q.reads(on(rw(nvme.Read, 3, 1)), 512); !bytes.Equal(got, make([]byte, 512)) {
			t.Error("Write Zeroes with deallocation leaves data")
		}
		outside := nvme.DSMRange{SLBA: 8191, Blocks: 2}
		discard.CDW10 = 0
		q.want(discard, append(outside.Append(nil), make([]byte, 4096-16)...), nvme.LBAOutOfRange)
	}
	if content, err := os.ReadFile(file); err != nil || len(content) != 4<<20 {
		t.Errorf("the file has %d bytes, %v", len(content), err)
	}

	read := func(slba uint64, blocks uint32, s nvme.SGL) nvme.Command {
		c := rw(nvme.Read, slba, blocks)
		c.SGL = s
		return c
	}
	for name, test := range map[string]struct {
		c    nvme.Command
		want nvme.Status
	}{
		"the last block":           {read(8191, 1, q.keyed(0, 512)), nvme.Success},
		"after the end":            {read(8191, 2, q.keyed(0, 1024)), nvme.LBAOutOfRange},
		"far after the end":        {read(1<<64-1, 1, q.keyed(0, 512)), nvme.LBAOutOfRange},
		"more than MDTS":           {read(0, 2049, q.keyed(0, 2049*512)), nvme.InvalidField},
		"a short SGL":              {read(0, 2, q.keyed(0, 512)), nvme.SGLDataLengthInvalid},
		"a long SGL":               {read(0, 1, q.keyed(0, 1024)), nvme.SGLDataLengthInvalid},
		"a read into the capsule":  {read(0, 1, nvme.InCapsule(512)), nvme.SGLTypeInvalid},
		"an SGL segment":           {read(0, 1, nvme.SGL{Length: 512, Type: nvme.SGLLastSegment, Subtype: nvme.SGLOffset}), nvme.SGLTypeInvalid},
		"no namespace":             {nvme.Command{Opcode: nvme.Flush, NSID: 4}, nvme.InvalidNamespace},
		"NSID 0":                   {nvme.Command{Opcode: nvme.Flush}, nvme.InvalidNamespace},
		"Flush of all":             {nvme.Command{Opcode: nvme.Flush, NSID: nvme.AllNamespaces}, nvme.Success},
		"an unknown opcode":        {nvme.Command{Opcode: 0x7e, NSID: 1}, nvme.InvalidOpcode},
		"a fused command":          {nvme.Command{Opcode: nvme.Flush, NSID: 1, Flags: 1}, nvme.InvalidField},
		"a read-only namespace":    {nvme.Command{Opcode: nvme.WriteZeroes, NSID: 3}, nvme.WriteProtected},
		"deallocation there":       {nvme.Command{Opcode: nvme.DatasetManagement, NSID: 3, CDW11: nvme.DSMDeallocate}, nvme.WriteProtected},
		"Property Get":             {nvme.PropertyGetCommand(nvme.PropertyCSTS), nvme.InvalidOpcode},
		"a second Connect":         {nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Connect)}, nvme.CommandSequenceError},
		"authentication":           {nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.AuthenticationSend)}, nvme.InvalidOpcode},
		"hints of Dataset Mgmt":    {nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW11: 1}, nvme.Success},
		"a capsule that is no SGL": {read(0, 1, nvme.SGL{Length: 512}), nvme.SGLTypeInvalid},
	} {
		if done := q.do(test.c, nil); done.Status.Code() != test.want {
			t.Errorf("%s: %v, want %v", name, done.Status, test.want)
		}
	}
	for _, at := range []nvme.SGL{{Addr: 1, Length: 512, Type: nvme.SGLData, Subtype: nvme.SGLOffset}, nvme.InCapsule(513),
		{Addr: 1<<64 - 1, Length: 512, Type: nvme.SGLData, Subtype: nvme.SGLOffset}} {
		w := rw(nvme.Write, 0, 1)
		w.SGL = at
		q.want(w, make([]byte, 512), nvme.SGLOffsetInvalid)
	}
}

// The host's key is invalidated by the response if the SGL says so.
func TestInvalidate(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		q := newLab(t, transport, nil).associate(1, 0).io[0]
		mw := must(q.pd.AllocMW(verbs.MWType2))(t)
		key := verbs.IncRKey(mw.RKey())
		ok(t, q.conn.QP().PostSend(&verbs.SendWR{WRID: sendID, Opcode: verbs.BindMW, Flags: verbs.SendSignaled, Bind: &verbs.MWBind{
			MW: mw, RKey: key, MWBindInfo: verbs.MWBindInfo{MR: q.data, Addr: q.data.Addr(), Length: 4096,
				Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite}}}))
		read := rw(nvme.Read, 0, 8)
		read.SGL = nvme.Keyed(q.data.Addr(), 4096, key, true)
		q.want(read, nil, nvme.Success)
		if q.wc.Flags&verbs.WCWithInv == 0 || q.wc.InvalidatedRKey != key {
			t.Errorf("the response has flags %v and key %#x, want %#x", q.wc.Flags, q.wc.InvalidatedRKey, key)
		}
	})
}

func TestDiscovery(t *testing.T) {
	l := newLab(t, verbs.RoCEv2, &target.Config{Hosts: []string{hostNQN}})
	for host, records := range map[string]uint64{hostNQN: 1, "nqn.other": 0} {
		q := must(l.dial(request(0, testDepth).Append(nil)))(t)
		d := l.connectData(nvme.DynamicController)
		d.SubsystemNQN, d.HostNQN = nvme.DiscoveryNQN, host
		done := q.connect(0, d, 0)
		ok(t, done.Status.Err())
		a := &association{lab: l, admin: q}
		a.enable()
		b, done := q.reads(nvme.Command{Opcode: nvme.Identify, CDW10: uint32(nvme.CNSController)}, nvme.IdentifyLen)
		ok(t, done.Status.Err())
		if i := must(nvme.ParseIdentifyController(b))(t); i.Type != nvme.ControllerDiscovery || i.SubsystemNQN != nvme.DiscoveryNQN {
			t.Errorf("%+v", i)
		}
		p := nvme.LogParams{Page: nvme.LogDiscovery, Length: 4096}
		b, done = q.reads(p.Command(), int(p.Length))
		ok(t, done.Status.Err())
		if h := must(nvme.ParseDiscoveryHeader(b))(t); h.Records != records {
			t.Errorf("host %s: %+v, want %d records", host, h, records)
		}
		if records == 0 {
			continue
		}
		e := must(nvme.ParseDiscoveryEntry(b[nvme.DiscoveryHeaderLen:]))(t)
		if e.SubsystemNQN != subsystem || e.Addr != l.at || e.Subtype != nvme.SubsystemNVM || e.Transport != nvme.TransportRDMA {
			t.Errorf("%+v, want %s at %v", e, subsystem, l.at)
		}
		p.Page = nvme.LogSMART
		if _, done := q.reads(p.Command(), int(p.Length)); done.Status.Code() != nvme.InvalidLogPage {
			t.Errorf("SMART: %v", done.Status)
		}
	}
}

func TestAdmin(t *testing.T) {
	l := newLab(t, verbs.IWARP, &target.Config{Namespaces: []target.Namespace{
		{Backend: target.NewMemory(1 << 20)}, {Backend: target.NewMemory(1 << 20), BlockSize: 4096, ReadOnly: true},
	}})
	a := l.associate(1, 0)
	q := a.admin
	identify := func(cns nvme.CNS, nsid uint32) ([]byte, nvme.Status) {
		b, done := q.reads(nvme.Command{Opcode: nvme.Identify, NSID: nsid, CDW10: uint32(cns)}, nvme.IdentifyLen)
		return b, done.Status.Code()
	}
	b, status := identify(nvme.CNSController, 0)
	ok(t, status.Err())
	if i := must(nvme.ParseIdentifyController(b))(t); i.CNTLID != a.id || i.SubsystemNQN != subsystem || i.Namespaces != 2 ||
		i.CommandCapsule*16 != capsule || !i.VolatileCache || len(i.Serial) == 0 {
		t.Errorf("%+v", i)
	}
	b, status = identify(nvme.CNSNamespaceList, 1)
	ok(t, status.Err())
	if list := must(nvme.ParseNamespaceList(b))(t); !slices.Equal(list, []uint32{2}) {
		t.Errorf("namespaces after 1: %v", list)
	}
	b, status = identify(nvme.CNSNamespace, 2)
	ok(t, status.Err())
	if i := must(nvme.ParseIdentifyNamespace(b))(t); i.Size != 256 || i.BlockShift != 12 || i.Attributes != nvme.NamespaceReadOnly {
		t.Errorf("%+v", i)
	}
	var uuids [2][16]byte
	for i := range uuids {
		b, status = identify(nvme.CNSDescriptors, uint32(i+1))
		ok(t, status.Err())
		uuids[i] = must(nvme.ParseDescriptors(b))(t).UUID
	}
	if uuids[0] == uuids[1] || uuids[0] == [16]byte{} {
		t.Errorf("UUIDs %x", uuids)
	}
	b, status = identify(nvme.CNSIndependentNS, 1)
	ok(t, status.Err())
	if i := must(nvme.ParseIndependentNamespace(b))(t); !i.Ready {
		t.Errorf("%+v", i)
	}
	for cns, want := range map[nvme.CNS]nvme.Status{nvme.CNSCommandSetCtrl: nvme.Success, nvme.CNSControllers: nvme.Success,
		nvme.CNSControllersOfNS: nvme.Success, 0x7f: nvme.InvalidField} {
		if _, status := identify(cns, 1); status != want {
			t.Errorf("CNS %#x: %v", cns, status)
		}
	}
	if _, status := identify(nvme.CNSNamespace, 3); status != nvme.InvalidNamespace {
		t.Errorf("namespace 3: %v", status)
	}

	a.io[0].reads(rw(nvme.Read, 0, 8), 4096)
	a.io[0].reads(rw(nvme.Read, 1<<32|5, 1), 512) // fails
	page := func(page nvme.LogPage, n int) []byte {
		p := nvme.LogParams{Page: page, Length: uint64(n)}
		b, done := q.reads(p.Command(), n)
		ok(t, done.Status.Err())
		return b
	}
	if s := must(nvme.ParseSMART(page(nvme.LogSMART, nvme.SMARTLen)))(t); s.Reads != 1 || s.UnitsRead != 1 || s.ErrorLogEntries == 0 {
		t.Errorf("%+v", s)
	}
	if e := must(nvme.ParseErrorEntry(page(nvme.LogErrors, 4096)))(t); e.SQID != 1 || e.LBA != 1<<32|5 ||
		e.Status.Code() != nvme.LBAOutOfRange {
		t.Errorf("%+v", e)
	}
	if b := page(nvme.LogFirmware, 512); b[0] != 1 {
		t.Errorf("firmware log: %x", b[:16])
	}
	if b := page(nvme.LogCommands, 4096); b[4*int(nvme.Identify)] != 1 || b[1024+4*int(nvme.Write)] != 3 {
		t.Error("the commands log does not have Identify or Write")
	}
	for p, want := range map[nvme.LogParams]nvme.Status{
		{Page: 0x0c, Length: 512}:                                  nvme.InvalidLogPage,
		{Page: nvme.LogDiscovery, Length: 1024}:                    nvme.InvalidLogPage,
		{Page: nvme.LogSMART, Length: 512, Offset: 2}:              nvme.InvalidField,
		{Page: nvme.LogSMART, Length: 512, Offset: 516}:            nvme.InvalidField,
		{Page: nvme.LogSMART, Length: 1 << 20}:                     nvme.InvalidField,
		{Page: nvme.LogErrors, Length: 8192, Offset: 1<<12 - 1<<6}: nvme.Success,
	} {
		if _, done := q.reads(p.Command(), int(p.Length)); done.Status.Code() != want {
			t.Errorf("log page %+v: %v, want %v", p, done.Status, want)
		}
	}

	feature := func(op nvme.Opcode, f nvme.Feature, value uint32) (uint64, nvme.Status) {
		done := q.do(nvme.Command{Opcode: op, CDW10: uint32(f), CDW11: value}, nil)
		return done.Result, done.Status.Code()
	}
	for _, f := range []struct {
		op     nvme.Opcode
		f      nvme.Feature
		value  uint32
		result uint64
		want   nvme.Status
	}{
		{nvme.GetFeatures, nvme.FeatureQueues, 0, 63<<16 | 63, nvme.Success},
		{nvme.SetFeatures, nvme.FeatureQueues, 3<<16 | 3, 0, nvme.CommandSequenceError}, // there is one already
		{nvme.GetFeatures, nvme.FeatureVolatileCache, 0, 1, nvme.Success},
		{nvme.SetFeatures, nvme.FeatureVolatileCache, 0, 0, nvme.Success},
		{nvme.GetFeatures, nvme.FeatureVolatileCache, 0, 0, nvme.Success},
		{nvme.SetFeatures, nvme.FeatureKeepAlive, 60_500, 0, nvme.Success},
		{nvme.GetFeatures, nvme.FeatureKeepAlive, 0, 61_000, nvme.Success},
		{nvme.SetFeatures, nvme.FeatureAsyncEvents, nvme.AEAttribute, 0, nvme.Success},
		{nvme.GetFeatures, nvme.FeatureAsyncEvents, 0, nvme.AEAttribute, nvme.Success},
		{nvme.GetFeatures, nvme.FeatureArbitration, 0, 0, nvme.Success},
		{nvme.SetFeatures, nvme.FeaturePower, 1, 0, nvme.FeatureNotChangeable},
		{nvme.GetFeatures, 0x7f, 0, 0, nvme.InvalidField},
		{nvme.SetFeatures, 0x7f, 0, 0, nvme.InvalidField},
	} {
		if result, status := feature(f.op, f.f, f.value); result != f.result || status != f.want {
			t.Errorf("%s %#x: %#x, %v; want %#x, %v", f.op.Name(true), f.f, result, status, f.result, f.want)
		}
	}
	if b, done := q.reads(nvme.Command{Opcode: nvme.GetFeatures, CDW10: uint32(nvme.FeatureHostID), CDW11: 1}, 16); b[0] != 1 {
		t.Errorf("host ID %x, %v", b, done.Status)
	}
	q.want(nvme.Command{Opcode: nvme.KeepAlive}, nil, nvme.Success)
	q.want(nvme.Command{Opcode: 0x0d}, nil, nvme.InvalidOpcode)
}

// A changed size is announced once, until the host has read the log. Four requests for events may
// be outstanding, and be aborted.
func TestAsyncEvents(t *testing.T) {
	disk := target.NewMemory(1 << 20)
	a := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: disk}}}).associate(0, 0)
	q := a.admin
	q.want(nvme.Command{Opcode: nvme.SetFeatures, CDW10: uint32(nvme.FeatureAsyncEvents), CDW11: nvme.AEAttribute}, nil, nvme.Success)
	var cids []uint16
	for range 4 {
		cids = append(cids, q.send(nvme.Command{Opcode: nvme.AsyncEventRequest}, nil))
	}
	q.want(nvme.Command{Opcode: nvme.AsyncEventRequest}, nil, nvme.AsyncEventLimit)

	q.send(nvme.Command{Opcode: nvme.Abort, CDW10: uint32(cids[3]) << 16}, nil)
	for range 2 { // in either order
		done, err := q.response()
		ok(t, err)
		if done.CID == cids[3] && done.Status.Code() != nvme.AbortRequested || done.CID != cids[3] && done.Result != 0 {
			t.Errorf("%+v", done)
		}
	}
	if done := q.do(nvme.Command{Opcode: nvme.Abort, CDW10: uint32(cids[3]) << 16}, nil); done.Result != 1 {
		t.Errorf("aborted again: %+v", done)
	}
	for i := range 2 {
		disk.Resize((2 + i) << 20)
		done, err := q.response()
		ok(t, err)
		if done.CID != cids[i] || done.Result != uint64(nvme.AsyncNamespaceChanged) {
			t.Fatalf("event %+v", done)
		}
		p := nvme.LogParams{Page: nvme.LogChangedNamespaces, Length: 4096}
		b, _ := q.reads(p.Command(), 4096)
		if list := must(nvme.ParseNamespaceList(b))(t); !slices.Equal(list, []uint32{1}) {
			t.Errorf("changed: %v", list)
		}
		b, _ = q.reads(nvme.Command{Opcode: nvme.Identify, NSID: 1}, nvme.IdentifyLen)
		if n := must(nvme.ParseIdentifyNamespace(b))(t).Size; n != uint64(2+i)<<11 {
			t.Errorf("%d blocks", n)
		}
	}
}

// A host that sends nothing within the keep alive timeout loses its queues. A host that sends I/O
// commands keeps them. Time is virtual.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, verbs.RoCEv2, nil)
		silent, busy := l.associate(2, 10*time.Second), l.associate(1, 10*time.Second)
		began := time.Now()
		for range 20 {
			time.Sleep(5 * time.Second)
			busy.io[0].reads(rw(nvme.Read, 0, 1), 512)
		}
		for _, q := range append(silent.io, silent.admin) {
			q.ended()
		}
		synctest.Wait()
		if s := l.target.Stats(); s.Controllers != 1 || s.Queues != 2 {
			t.Errorf("after %v: %+v", time.Since(began), s)
		}
	})
}

// A connection without a Connect command ends.
func TestSilentHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, verbs.RoCEv2, nil)
		q := must(l.dial(request(0, testDepth).Append(nil)))(t)
		began := time.Now()
		q.ended()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("after %v", took)
		}
		synctest.Wait()
		if s := l.target.Stats(); s.Queues != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Hosts that do not complete their connections leave room for others, at their own address and at
// another. Time is virtual.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		lan := new(pipe.Switch)
		to, from, other := open(t, lan, "10.0.0.1/24"), open(t, lan, "10.0.0.2/24"), open(t, lan, "10.0.0.3/24")
		l := labOn(t, to, from, netip.MustParseAddr("10.0.0.1"), verbs.RoCEv2, &target.Config{Connections: most})
		for i := range uint32(most) {
			id := must(rdmacm.CreateSyncID(rdmacm.TCP, l.from))(t)
			defer id.Close()
			ok(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, l.at))
			ok(t, id.ResolveRoute(t.Context()))
			private := request(0, testDepth).Append(nil)
			ok(t, id.Connect(t.Context(), &rdmacm.ConnParam{QPNum: 100 + i, PrivateData: private})) // without Establish
		}
		for _, dev := range []*verbs.Device{from, other} {
			l.from = dev
			synctest.Wait() // those that make room have ended
			must(l.dial(request(0, testDepth).Append(nil)))(t).close()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := l.to.Resources().QP; n > 1 {
			t.Errorf("%d QPs are left", n)
		}
	})
}

// A host that waits for a connection and hangs up leaves its place in the queue to the next one.
// Time is virtual.
func TestWaitingHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan, cut := new(pipe.Switch), new(atomic.Bool)
		lost := impair.Direction{Rules: []impair.Rule{{Match: func([]byte) bool { return cut.Load() }, Count: -1}}}
		wire := must(impair.New(lan.Port(), &impair.Config{In: lost, Out: lost}))(t)
		to, stranger, from := open(t, lan, "10.0.0.1/24"), openOn(t, wire, "10.0.0.2/24"), open(t, lan, "10.0.0.3/24")
		// One place may be waited for, by one.
		l := labOn(t, to, stranger, netip.MustParseAddr("10.0.0.1"), verbs.RoCEv2, &target.Config{Connections: 2})
		private := request(0, testDepth).Append(nil)
		must(l.dial(private))(t)
		cut.Store(true)
		l.from = from
		must(l.dial(private))(t)
		must(l.dial(private))(t) // the stranger leaves for it, when it is known to be gone
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := rdmacm.Dial(ctx, from, l.at.String(), &rdmacm.Config{PrivateData: private}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("it does not wait: ", err)
		}
		synctest.Wait()
		must(l.dial(private))(t)
	})
}

// The hosts at one address have half of the connections at most: those at another can connect.
func TestShareOfConnections(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		to, from, other := open(t, lan, "10.0.0.1/24"), open(t, lan, "10.0.0.2/24"), open(t, lan, "10.0.0.3/24")
		l := labOn(t, to, from, netip.MustParseAddr("10.0.0.1"), transport, &target.Config{Connections: 8})
		l.associate(3, 0)
		if _, err := l.dial(request(0, testDepth).Append(nil)); rejected(err) != nvme.RejectNoResources {
			t.Errorf("a fifth connection of one address: %v", err)
		}
		l.from = other
		w := rw(nvme.Write, 0, 1)
		w.SGL = nvme.InCapsule(512)
		l.associate(1, 0).io[0].want(w, make([]byte, 512), nvme.Success)
		if s := l.target.Stats(); s.Admission.Refused != 1 || s.Admission.Displaced != 0 || s.Queues != 6 {
			t.Errorf("%+v", s)
		}
	})
}

// Connection requests are rejected with the status that the specification gives them.
func TestReject(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, &target.Config{Connections: 4, IOQueues: 4})
		good := request(0, testDepth)
		for _, test := range []struct {
			private []byte
			want    nvme.RejectStatus
		}{
			{(&nvme.ConnRequest{RecordFormat: 1, HRQSize: 32, HSQSize: 31}).Append(nil), nvme.RejectRecordFormat},
			{request(5, testDepth).Append(nil), nvme.RejectQID},
			{(&nvme.ConnRequest{HRQSize: 32}).Append(nil), nvme.RejectHSQSize},
			{(&nvme.ConnRequest{HSQSize: 31}).Append(nil), nvme.RejectHRQSize},
			{(&nvme.ConnRequest{QID: 1, HRQSize: 32, HSQSize: 31, CNTLID: 9}).Append(nil), nvme.RejectCNTLID},
		} {
			if _, err := l.dial(test.private); rejected(err) != test.want {
				t.Errorf("%x: %v, status %v, want %v", test.private, err, rejected(err), test.want)
			}
		}
		if transport == verbs.IWARP { // RoCE appends zeros
			if _, err := l.dial(good.Append(nil)[:10]); rejected(err) != nvme.RejectLength {
				t.Errorf("short private data: %v", err)
			}
		}
		l.associate(1, 0)
		if _, err := l.dial(good.Append(nil)); rejected(err) != nvme.RejectNoResources {
			t.Errorf("a third connection: %v", err)
		}
	})
}

// Connect commands fail with the status and the field that the specification says.
func TestConnect(t *testing.T) {
	l := newLab(t, verbs.RoCEv2, &target.Config{Hosts: []string{hostNQN}})
	a := l.associate(1, 0)
	for name, test := range map[string]struct {
		qid    uint16
		change func(*nvme.ConnectData)
		want   nvme.Status
		result uint64
	}{
		"another subsystem": {0, func(d *nvme.ConnectData) { d.SubsystemNQN = "nqn.other" }, nvme.ConnectInvalid, 1<<16 | 256},
		"another host":      {0, func(d *nvme.ConnectData) { d.HostNQN = "nqn.other" }, nvme.ConnectHost, 0},
		"no host":           {0, func(d *nvme.ConnectData) { d.HostNQN = "" }, nvme.ConnectHost, 0},
		"no NQN of a host":  {0, func(d *nvme.ConnectData) { d.HostNQN = "host" }, nvme.ConnectInvalid, 1<<16 | 512},
		"static controller": {0, func(d *nvme.ConnectData) { d.CNTLID = 7 }, nvme.ConnectInvalid, 1<<16 | 16},
		"no controller":     {2, func(d *nvme.ConnectData) { d.CNTLID = 7777 }, nvme.ConnectInvalid, 1<<16 | 16},
		"not its host":      {2, func(d *nvme.ConnectData) { d.CNTLID, d.HostID = a.id, [16]byte{2} }, nvme.ConnectInvalid, 1<<16 | 512},
		"a queue twice":     {1, func(d *nvme.ConnectData) { d.CNTLID = a.id }, nvme.ConnectInvalid, 42},
	} {
		q := must(l.dial(request(test.qid, testDepth).Append(nil)))(t)
		d := l.connectData(nvme.DynamicController)
		test.change(d)
		if done := q.connect(test.qid, d, 0); done.Status.Code() != test.want || done.Result != test.result {
			t.Errorf("%s: %v, %#x; want %v, %#x", name, done.Status, done.Result, test.want, test.result)
		}
		q.want(nvme.Command{Opcode: nvme.KeepAlive}, nil, nvme.CommandSequenceError) // there is no controller
	}
	q := must(l.dial(request(0, 16).Append(nil)))(t)
	if done := q.connect(0, l.connectData(nvme.DynamicController), 0); done.Status.Code() != nvme.ConnectInvalid || done.Result != 44 {
		t.Errorf("more entries than HSQSIZE: %+v", done)
	}
}

// Of several Connect commands at a time one creates a controller, which ends with the queue.
func TestConnectsAtOnce(t *testing.T) {
	l := newLab(t, verbs.RoCEv2, nil)
	q := must(l.dial(request(0, testDepth).Append(nil)))(t)
	copy(q.data.Buf(), l.connectData(nvme.DynamicController).Append(nil))
	const many = 16
	for range many {
		p := nvme.ConnectCommand{SQSize: testDepth - 1}
		c := p.Command()
		c.SGL = q.keyed(0, nvme.ConnectDataLen) // it is fetched, and meanwhile the next command arrives
		q.send(c, nil)
	}
	connected := 0
	for range many {
		switch done := must(q.response())(t); done.Status.Code() {
		case nvme.Success:
			connected++
		case nvme.CommandSequenceError:
		default:
			t.Errorf("%v", done.Status)
		}
	}
	if n := l.target.Stats().Controllers; connected != 1 || n != 1 {
		t.Errorf("%d Connect commands succeed, and create %d controllers", connected, n)
	}
}

// A host without an NQN, such as spdk_nvme_perf, may connect where all hosts may.
func TestConnectWithoutHostNQN(t *testing.T) {
	l := newLab(t, verbs.RoCEv2, nil)
	q := must(l.dial(request(0, testDepth).Append(nil)))(t)
	d := l.connectData(nvme.DynamicController)
	d.HostNQN = ""
	if done := q.connect(0, d, 0); done.Status.Code() != nvme.Success {
		t.Errorf("%v, %#x", done.Status, done.Result)
	}
}

// A reset ends the I/O queues, and a shutdown completes. Disconnect ends a queue.
func TestReset(t *testing.T) {
	a := newLab(t, verbs.RoCEv2, nil).associate(2, 0)
	set := func(cc uint32) { a.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, cc), nil, nvme.Success) }
	a.io[0].want(nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.Disconnect)}, nil, nvme.Success)
	a.io[0].ended()
	set(nvme.CCEntrySizes)
	a.io[1].ended()
	if done := a.admin.do(nvme.PropertyGetCommand(nvme.PropertyCSTS), nil); done.Result != 0 {
		t.Errorf("CSTS is %#x", done.Result)
	}
	a.admin.want(nvme.Command{Opcode: nvme.KeepAlive}, nil, nvme.CommandSequenceError)
	a.enable()
	set(nvme.CCEnable | nvme.CCEntrySizes | nvme.CCShutNormal)
	for {
		done := a.admin.do(nvme.PropertyGetCommand(nvme.PropertyCSTS), nil)
		if done.Result&nvme.CSTSShutComplete != 0 {
			break
		}
	}
	set(nvme.CCEnable | 1<<7) // a page size of 8 KiB
	set(0)
	set(nvme.CCEnable | 1<<7)
	if done := a.admin.do(nvme.PropertyGetCommand(nvme.PropertyCSTS), nil); done.Result&nvme.CSTSFatal == 0 {
		t.Errorf("CSTS is %#x", done.Result)
	}
}

// slow is a backend that blocks until it is released, and not one of the package's own.
type slow struct {
	*target.Memory
	release chan struct{}
}

func (s *slow) TryReadAt([]byte, int64) (bool, error)  { return false, nil }
func (s *slow) TryWriteAt([]byte, int64) (bool, error) { return false, nil }
func (s *slow) ReadAt(p []byte, off int64) (int, error) {
	<-s.release
	return s.Memory.ReadAt(p, off)
}

// Commands of a queue whose backend blocks do not delay others, of the same queue or of others.
func TestBlockingBackend(t *testing.T) {
	disk := &slow{Memory: target.NewMemory(1 << 20), release: make(chan struct{})}
	a := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 20)}, {Backend: disk}}}).
		associate(2, 0)
	q := a.io[0]
	blocked := rw(nvme.Read, 0, 1024)
	blocked.NSID, blocked.SGL = 2, q.keyed(1<<20, 512<<10)
	cid := q.send(blocked, nil)
	for _, q := range a.io {
		q.reads(rw(nvme.Read, 0, 8), 4096)
	}
	write := rw(nvme.Write, 1024, 1)
	write.NSID, write.SGL = 2, nvme.InCapsule(512)
	q.want(write, make([]byte, 512), nvme.Success)
	close(disk.release)
	if done, err := q.response(); err != nil || done.CID != cid || done.Status != nvme.Success {
		t.Errorf("%+v, %v", done, err)
	}
}

// A host whose commands all wait in a backend leaves half of the pool to the others.
func TestShareOfPool(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		disk := &slow{Memory: target.NewMemory(16 << 20), release: make(chan struct{})}
		lan := new(pipe.Switch)
		to, from, other := open(t, lan, "10.0.0.1/24"), open(t, lan, "10.0.0.2/24"), open(t, lan, "10.0.0.3/24")
		l := labOn(t, to, from, netip.MustParseAddr("10.0.0.1"), transport, &target.Config{Memory: 1 << 20,
			Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 20)}, {Backend: disk}}})
		q := l.associate(1, 0).io[0]
		for i := range uint64(testDepth - 1) { // as much as the pool has, and more
			c := rw(nvme.Read, i*128, 128)
			c.NSID, c.SGL = 2, q.keyed(0, 64<<10)
			q.send(c, nil)
		}
		q.reads(rw(nvme.Read, 0, 8), 4096) // from lent pages, after the others have begun
		l.from = other
		w := rw(nvme.Write, 1, 8) // which needs a chunk
		good := l.associate(1, 0).io[0]
		w.SGL = good.keyed(0, 4096)
		good.want(w, nil, nvme.Success)
		if l.target.Stats().WaitedForMemory == 0 {
			t.Error("nobody has waited for memory")
		}
		close(disk.release)
		for range testDepth - 1 {
			if done, err := q.response(); err != nil || done.Status != nvme.Success {
				t.Fatal(done, err)
			}
		}
	})
}

// More commands than the queue holds end the connection.
func TestTooManyCommands(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		disk := &slow{Memory: target.NewMemory(1 << 20), release: make(chan struct{})}
		l := newLab(t, transport, &target.Config{Namespaces: []target.Namespace{{Backend: disk}}})
		defer close(disk.release)
		q := l.associate(1, 0).io[0]
		for range testDepth + 1 {
			c := rw(nvme.Read, 0, 1)
			c.SGL = q.keyed(0, 512)
			q.send(c, nil)
		}
		q.ended()
	})
}

// All hosts' commands go on when the pool has less memory than they need together.
func TestSmallPool(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, &target.Config{Memory: 1 << 20})
		var hosts sync.WaitGroup
		for range 3 {
			a := l.associate(1, 0)
			hosts.Go(func() {
				q := a.io[0]
				for i := range testDepth - 1 {
					op := nvme.Read
					if i%2 == 0 {
						op = nvme.Write
					}
					c := rw(op, uint64(i), 2048)
					c.SGL = q.keyed(0, 1<<20)
					q.send(c, nil)
				}
				for range testDepth - 1 {
					if done, err := q.response(); err != nil || done.Status != nvme.Success {
						t.Errorf("%+v, %v", done, err)
						return
					}
				}
			})
		}
		hosts.Wait()
	})
}

// A key that gives no access ends the host's connection, and no other.
func TestWrongKey(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, nil)
		good := l.associate(1, 0)
		for _, op := range []nvme.Opcode{nvme.Read, nvme.Write} {
			for _, s := range []nvme.SGL{nvme.Keyed(0, 4096, 1, false), nvme.Keyed(1<<64-1, 4096, 1<<32-1, true)} {
				q := l.associate(1, 0).io[0]
				c := rw(op, 0, 8)
				c.SGL = s
				q.send(c, nil)
				q.ended()
			}
		}
		if _, done := good.io[0].reads(rw(nvme.Read, 0, 8), 4096); done.Status != nvme.Success {
			t.Errorf("another host's read: %v", done.Status)
		}
	})
}

// Errors of the backend are statuses.
func TestBackendErrors(t *testing.T) {
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: broken{}}}})
	q := l.associate(1, 0).io[0]
	for op, want := range map[nvme.Opcode]nvme.Status{nvme.Read: nvme.UnrecoveredReadError, nvme.Write: nvme.WriteFault,
		nvme.Compare: nvme.UnrecoveredReadError} {
		for _, blocks := range []uint32{8, 512} { // one part, and several
			c := rw(op, 0, blocks)
			c.SGL = q.keyed(0, int(blocks)*512)
			q.want(c, nil, want)
		}
	}
	q.want(rw(nvme.WriteZeroes, 0, 512), nil, nvme.WriteFault)
	q.want(nvme.Command{Opcode: nvme.Flush, NSID: 1}, nil, nvme.Success) // it has no Sync
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error)  { return 0, io.ErrUnexpectedEOF }
func (broken) WriteAt([]byte, int64) (int, error) { return 0, errors.New("broken") }
func (broken) Size() int64                        { return 1 << 20 }

func TestConfigRefused(t *testing.T) {
	ns := []target.Namespace{{Backend: target.NewMemory(4096)}}
	for want, cfg := range map[string]*target.Config{
		"check NQN":        {Namespaces: ns},
		"len(Namespaces)":  {NQN: subsystem},
		"QueueDepth 15":    {NQN: subsystem, Namespaces: ns, QueueDepth: 15},
		"Connections -1":   {NQN: subsystem, Namespaces: ns, Connections: -1},
		"Memory 4096":      {NQN: subsystem, Namespaces: ns, Memory: 4096},
		"ConnectTimeout":   {NQN: subsystem, Namespaces: ns, ConnectTimeout: -1},
		"no Backend":       {NQN: subsystem, Namespaces: []target.Namespace{{}}},
		"BlockSize 513":    {NQN: subsystem, Namespaces: []target.Namespace{{Backend: ns[0].Backend, BlockSize: 513}}},
		`"host": must beg`: {NQN: subsystem, Namespaces: ns, Hosts: []string{"host"}},
		"discovery serv":   {NQN: nvme.DiscoveryNQN, Namespaces: ns},
	} {
		if _, err := target.Listen(nil, ":4420", cfg); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Close ends connections, and Wait returns.
func TestClose(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, nil)
		a := l.associate(2, 0)
		waited := make(chan error)
		go func() { waited <- l.target.Wait() }()
		ok(t, l.target.Close())
		ok(t, <-waited)
		for _, q := range append(a.io, a.admin) {
			q.ended()
		}
		if s := l.target.Stats(); s.Queues != 0 || s.Controllers != 0 {
			t.Errorf("%+v", s)
		}
	})
}
