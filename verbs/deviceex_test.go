package verbs_test

import (
	"errors"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

func TestQueryDeviceEx(t *testing.T) {
	r := newRig(t)
	a := r.dev.QueryDeviceEx()
	if a.MaxQP != 64 || !a.ODP.Support || a.ODP.Implicit || a.PhysPortCntEx != 2 || a.CQModeration.Count != 65535 {
		t.Errorf("got %+v", a)
	}
	if k := must(r.dev.QueryPKey(1, 0))(t); k != 0xffff {
		t.Errorf("P_Key %#x", k)
	}
	if i := must(r.dev.PKeyIndex(1, 0xffff))(t); i != 0 {
		t.Errorf("index %d", i)
	}
	for _, err := range []error{
		func() error { _, err := r.dev.QueryPKey(1, 1); return err }(),
		func() error { _, err := r.dev.QueryPKey(9, 0); return err }(),
		func() error { _, err := r.dev.PKeyIndex(1, 0x8001); return err }(),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	}
}

func TestECE(t *testing.T) {
	r := newRig(t)
	if e := must(r.qp.QueryECE())(t); e != (verbs.ECE{}) {
		t.Errorf("got %+v", e)
	}
	check(t, r.qp.SetECE(verbs.ECE{VendorID: 0x2c9}))
	if err := r.qp.SetECE(verbs.ECE{Options: 1}); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
	check(t, r.qp.Close())
	if err := r.qp.SetECE(verbs.ECE{}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestDomains(t *testing.T) {
	r, other := newRig(t), newRig(t)
	td := must(r.dev.AllocTD())(t)
	if _, err := other.pd.AllocParentDomain(td); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	p := must(r.pd.AllocParentDomain(td))(t)
	if p.PD() != r.pd {
		t.Error("another PD")
	}
	check(t, r.qp.Close())
	for _, err := range []error{td.Close(), r.pd.Close()} {
		if !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
	}
	check(t, p.Close())
	check(t, td.Close())
	check(t, r.pd.Close())
	for _, err := range []error{p.Close(), td.Close(), func() error { _, err := r.pd.AllocParentDomain(nil); return err }()} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
}
