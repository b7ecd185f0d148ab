//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// fill sets each field of a structure, and of those in it, to another value. A number is at most
// 127, so that it fits every field of C.
func fill(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), next)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), next)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		*next = *next%127 + 1
		v.SetInt(int64(*next))
	case reflect.Interface, reflect.Slice: // of no structure of C
	default:
		*next = *next%127 + 1
		v.SetUint(*next)
	}
}

func filled[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem(), new(uint64))
	return v
}

// TestAHAttr: an address vector is the same after a conversion to C and back, and has the layout of
// struct ibv_ah_attr.
func TestAHAttr(t *testing.T) {
	for _, v := range []verbs.AHAttr{{}, filled[verbs.AHAttr]()} {
		var c cAHAttr
		setAHAttr(&c, &v)
		if got := ahAttr(&c); got != v {
			t.Errorf("%+v became %+v", v, got)
		}
	}
	c := cAHAttr{flow_label: 1<<32 - 1}
	if v := ahAttr(&c); v.GRH.FlowLabel != 1<<20-1 {
		t.Errorf("flow label %#x, want 20 bits", v.GRH.FlowLabel)
	}
	if size := unsafe.Sizeof(c); size != 32 {
		t.Errorf("%d bytes, want 32", size)
	}
}

// TestQPAttr: the attributes of a QP are the same after a conversion to C and back.
func TestQPAttr(t *testing.T) {
	for _, v := range []verbs.QPAttr{{}, filled[verbs.QPAttr]()} {
		v.QPAccessFlags &^= mrOnlyAccess
		var c cQPAttr
		setQPAttr(&c, &v)
		mask := verbs.QPAttrMask(0)
		if v.Alt != nil {
			mask = verbs.QPAttrAltPath
		}
		got := qpAttr(&c, mask)
		caps := verbs.QPCap{MaxSendWR: int(c.cap.max_send_wr), MaxRecvWR: int(c.cap.max_recv_wr), MaxSendSGE: int(c.cap.max_send_sge),
			MaxRecvSGE: int(c.cap.max_recv_sge), MaxInlineData: int(c.cap.max_inline_data)}
		if caps != v.Cap {
			t.Errorf("capabilities %+v, want %+v", caps, v.Cap)
		}
		if (c.sq_draining != 0) != v.SQDraining {
			t.Errorf("sq_draining is %d, want %t", c.sq_draining, v.SQDraining)
		}
		got.Cap, got.SQDraining = v.Cap, v.SQDraining // Query only
		if !reflect.DeepEqual(got, v) {
			t.Errorf("%+v became\n%+v", v, got)
		}
	}
}

// TestQPAttrBounds: what C's fields may have beyond the bits of the attribute is cut off, as in the
// kernel, or becomes a value that verbs refuses.
func TestQPAttrBounds(t *testing.T) {
	var c cQPAttr
	all := (*[unsafe.Sizeof(c)]byte)(unsafe.Pointer(&c))
	for i := range all {
		all[i] = 0xff
	}
	v := qpAttr(&c, 0)
	if v.RQPSN != 0xffffff || v.SQPSN != 0xffffff {
		t.Errorf("PSNs %#x and %#x, want 24 bits", v.RQPSN, v.SQPSN)
	}
	if v.QPState != 255 || v.CurQPState != 255 || v.PathMTU != 255 || v.PathMigState != 255 {
		t.Errorf("enums %d, %d, %d, %d, want 255", v.QPState, v.CurQPState, v.PathMTU, v.PathMigState)
	}
	if v.QPAccessFlags&mrOnlyAccess != 0 {
		t.Errorf("access %v has flags of regions", v.QPAccessFlags)
	}
	if v.Alt != nil {
		t.Error("an alternate path without its mask")
	}
}

// TestModifyAndQuery: query_qp returns what modify_qp has set.
func TestModifyAndQuery(t *testing.T) {
	u := newUser(t, roce)
	h, _ := u.newQP(verbs.RC)
	set := cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1,
		qp_access_flags: cU32(verbs.AccessRemoteRead | mrOnlyAccess)} // as programs pass
	check(t, modify(h, set, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	set = cQPAttr{qp_state: cU32(verbs.StateRTR), path_mtu: cU32(verbs.MTU512), dest_qp_num: 0x123456, rq_psn: 0xff654321,
		max_dest_rd_atomic: 3, min_rnr_timer: 11, ah_attr: u.path()}
	set.ah_attr.flow_label, set.ah_attr.traffic_class, set.ah_attr.hop_limit = 0xfff12345, 0x28, 9
	check(t, modify(h, set, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
	var got cQPAttr
	check(t, srQueryQP(h, &got))
	set.ah_attr.flow_label = 0x12345
	if got.qp_state != cU32(verbs.StateRTR) || got.path_mtu != set.path_mtu || got.dest_qp_num != 0x123456 || got.rq_psn != 0x654321 ||
		got.max_dest_rd_atomic != 3 || got.min_rnr_timer != 11 || got.port_num != 1 || got.ah_attr != set.ah_attr ||
		got.qp_access_flags != cU32(verbs.AccessRemoteRead) {
		t.Errorf("the attributes are %+v, want %+v", got, set)
	}
	init := u.qpInit(verbs.RC)
	if got.cap.max_send_wr < init.cap.max_send_wr || got.cap.max_inline_data < init.cap.max_inline_data {
		t.Errorf("the QP has %+v, want at least %+v", got.cap, init.cap)
	}
	h, _ = u.newQP(verbs.RC)
	check(t, modify(h, cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	for what, bad := range map[string]func(*cQPAttr){
		"MTU 0x103": func(a *cQPAttr) { a.path_mtu = 0x103 }, "MTU 0": func(a *cQPAttr) { a.path_mtu = 0 },
		"peer of 32 bits": func(a *cQPAttr) { a.dest_qp_num = 0xff123456 }, "no GRH": func(a *cQPAttr) { a.ah_attr.is_global = 0 },
		"empty GID": func(a *cQPAttr) { a.ah_attr.sgid_index = 200 }, "RNR timer 32": func(a *cQPAttr) { a.min_rnr_timer = 32 },
	} {
		a := set
		bad(&a)
		fails(t, what, modify(h, a, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
			verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer), syscall.EINVAL)
	}
}

// TestAbsentPeer: modify_qp and create_ah fail if the peer's MAC address cannot be found, and the
// QP stays in INIT, as in Linux.
func TestAbsentPeer(t *testing.T) {
	u := newUser(t, roce)
	h, _ := u.newQP(verbs.RC)
	check(t, modify(h, cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	rtr := func(to cAHAttr) cInt {
		return modify(h, cQPAttr{qp_state: cU32(verbs.StateRTR), path_mtu: cU32(verbs.MTU512), dest_qp_num: 17, ah_attr: to},
			verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
				verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer)
	}
	absent, elsewhere := u.path(), u.path()
	absent.dgid[15] = 77
	elsewhere.dgid[12] = 192
	var ah cU32
	fails(t, "RTR without a route", rtr(elsewhere), syscall.ENETUNREACH)
	fails(t, "AH without a route", srCreateAH(u.pd, &elsewhere, &ah), syscall.ENETUNREACH)
	done := make(chan cInt)
	go func() { done <- srCreateAH(u.pd, &absent, &ah) }()
	fails(t, "RTR to an absent host", rtr(absent), syscall.ETIMEDOUT)
	fails(t, "AH to an absent host", <-done, syscall.ETIMEDOUT)
	check(t, rtr(u.path()))
}

// TestDevices: what open, query_device and query_port say about the two devices of a stack.
func TestDevices(t *testing.T) {
	list, err := deviceList()
	check(t, err)
	if len(list) != 2 {
		t.Fatalf("%d devices, want 2", len(list))
	}
	for i, want := range []struct {
		name            string
		kind, transport cInt
		gids            cInt
		lacks           verbs.DeviceCapFlags
	}{
		{"softrnic0", 1, 0, 256, verbs.DeviceFlushPersistent},
		{"softrnic0_iw", 4, 1, 1, verbs.DeviceRawMulti | verbs.DeviceUDAVPortEnforce | verbs.DeviceRCRNRNAKGen | verbs.DeviceXRC |
			verbs.DeviceManagedFlowSteering | verbs.DeviceFlushGlobal | verbs.DeviceFlushPersistent | verbs.DeviceAtomicWrite},
	} {
		d := &list[i]
		if name := text(d.name[:]); name != want.name || d.node_type != want.kind || d.transport != want.transport {
			t.Errorf("device %s of type %d, transport %d, want %+v", name, d.node_type, d.transport, want)
		}
		var attr _Ctype_struct_sr_device_attr
		var ex _Ctype_struct_sr_device_attr_ex
		var port _Ctype_struct_sr_port_attr
		check(t, srQueryDevice(cInt(i), &attr, &ex))
		check(t, srQueryPort(cInt(i), 1, &port))
		dev := stacks.devices[i].dev
		q, p := dev.QueryDeviceEx(), mustPort(t, dev)
		q.DeviceCapFlags &^= want.lacks
		if attr.node_guid != d.guid || int(attr.max_qp) != q.MaxQP || int(attr.max_sge) != q.MaxSGE || int(attr.max_cqe) != q.MaxCQE ||
			uint64(attr.max_mr_size) != q.MaxMRSize || attr.phys_port_cnt != 1 || text(attr.fw_ver[:]) != q.FWVer ||
			uint64(ex.device_cap_flags) != uint64(q.DeviceCapFlags) || int(ex.max_inline_data) != q.MaxInlineData {
			t.Errorf("attributes %+v and %+v, want %+v", attr, ex, q)
		}
		if port.state != cU32(p.State) || port.active_mtu != cU32(p.ActiveMTU) || uint32(port.max_msg_sz) != p.MaxMsgSz ||
			port.link_layer != cU8(p.LinkLayer) || port.active_width != cU8(p.ActiveWidth) || port.gid_tbl_len != want.gids ||
			port.pkey_tbl_len != 1 {
			t.Errorf("port %+v, want %+v, with %d GIDs", port, p, want.gids)
		}
	}
	if list[0].guid == list[1].guid {
		t.Error("both devices have the same GUID")
	}
}

func mustPort(t *testing.T, dev *verbs.Device) verbs.PortAttr {
	p, err := dev.QueryPort(1)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// text returns a string of C.
func text(c []_Ctype_char) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&c[0])), len(c))
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// TestSetString: a string that is too long for its array is cut, and always ended.
func TestSetString(t *testing.T) {
	for in, want := range map[string]string{"": "", "abc": "abc", "abcdefg": "abcdefg", "abcdefgh": "abcdefg", "abcdefghijkl": "abcdefg"} {
		array := [8]_Ctype_char{'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x'}
		if setString(array[:], in); text(array[:]) != want || array[7] != 0 {
			t.Errorf("%q became %q, ended by %d; want %q", in, text(array[:]), array[7], want)
		}
	}
}

// TestGIDs: entries of the table, with the types of enum ibv_gid_type, and the P_Key in network
// byte order.
func TestGIDs(t *testing.T) {
	newUser(t, roce)
	table, err := stacks.devices[roce].dev.GIDTable(1)
	if err != nil {
		t.Fatal(err)
	}
	var e _Ctype_struct_sr_gid_entry
	types := map[cU32]bool{}
	for _, want := range table {
		check(t, srQueryGID(roce, 1, cInt(want.Index), &e))
		if *(*verbs.GID)(unsafe.Pointer(&e.gid)) != want.GID || int(e.index) != want.Index || e.port != 1 || e._type != cU32(want.Type) {
			t.Errorf("entry %+v, want %+v", e, want)
		}
		types[e._type] = true
	}
	if !types[2] { // IBV_GID_TYPE_ROCE_V2
		t.Errorf("types %v: none is RoCEv2", types)
	}
	check(t, srQueryGID(roce, 1, gidIndex, &e))
	if g := verbs.GIDFromAddr(netip.MustParseAddr(addr)); *(*verbs.GID)(unsafe.Pointer(&e.gid)) != g {
		t.Errorf("GID %v, want %v", e.gid, g)
	}
	check(t, srQueryGID(iwarp, 1, 0, &e))
	if e.gid == [16]cU8{} || [10]cU8(e.gid[6:]) != [10]cU8{} {
		t.Errorf("GID %v of iWARP, want a MAC address", e.gid)
	}
	var pkey cU16
	check(t, srQueryPKey(roce, 1, 0, &pkey))
	if b := (*[2]byte)(unsafe.Pointer(&pkey)); *b != [2]byte{0xff, 0xff} {
		t.Errorf("P_Key %x, want ffff", *b)
	}
}

// TestSRQ: the attributes of an SRQ, and its event, which names the SRQ and is counted.
func TestSRQ(t *testing.T) {
	u := newUser(t, roce)
	a := cSRQInit{events: u.events, pd: u.pd}
	a.attr.max_wr, a.attr.max_sge = 10, 2
	var h, num cU32
	check(t, srCreateSRQ(&a, &h, &num))
	var done cInt
	check(t, srPostSRQRecv(h, &cRecvWR{}, &done))
	limit := func(n cU32) cInt { return srModifySRQ(h, &cSRQAttr{srq_limit: n}, cInt(verbs.SRQLimit)) }
	var got cSRQAttr
	check(t, limit(1))
	check(t, srQuerySRQ(h, &got))
	if got.max_wr < 10 || got.max_sge < 2 || got.srq_limit != 1 {
		t.Errorf("attributes %+v", got)
	}
	fails(t, "limit above max_wr", limit(1<<31), syscall.EINVAL)
	check(t, limit(2))
	var event _Ctype_struct_sr_async_event
	for srGetAsyncEvent(u.context, &event) == cInt(syscall.EAGAIN) {
		runtime.Gosched()
	}
	if event.of != u.events || event.of.async != 1 || event._type != cU32(verbs.EventSRQLimitReached) {
		t.Errorf("event %+v, with %d counted", event, u.events.async)
	}
	check(t, srDestroySRQ(h))
	a.attr.max_wr = 1<<32 - 1
	fails(t, "too many requests", srCreateSRQ(&a, &h, &num), syscall.EINVAL)
}
