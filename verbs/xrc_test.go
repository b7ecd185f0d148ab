package verbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestXRCD: calls of OpenXRCD with the same file return the same domain, which the last Close
// closes.
func TestXRCD(t *testing.T) {
	r := newRig(t)
	f := must(os.Create(filepath.Join(t.TempDir(), "domain")))(t)
	defer f.Close()
	if _, err := r.dev.OpenXRCD(f, os.O_EXCL); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("without O_CREATE: %v", err)
	}
	x, y, z := must(r.dev.OpenXRCD(f, os.O_CREATE|os.O_EXCL))(t), must(r.dev.OpenXRCD(f, 0))(t), must(r.dev.OpenXRCD(nil, 0))(t)
	if x != y || x == z {
		t.Error("the same file gives another domain, or no file gives the same one")
	}
	if _, err := r.dev.OpenXRCD(f, os.O_CREATE|os.O_EXCL); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("with O_EXCL: %v", err)
	}
	qp := must(x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t)
	if again := must(y.OpenQP(qp.Num()))(t); again != qp {
		t.Error("OpenQP found another QP")
	}
	if _, err := z.OpenQP(qp.Num()); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("another domain's QP: %v", err)
	}
	check(t, y.Close())
	check(t, qp.Close())
	if err := x.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("with a QP: %v", err)
	}
	check(t, qp.Close())
	if err := qp.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closed three times: %v", err)
	}
	check(t, x.Close())
	check(t, z.Close())
	if err := x.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closed too many times: %v", err)
	}
	for _, a := range []*verbs.QPInitAttr{{Type: verbs.XRCRecv}, {Type: verbs.XRCSend, SendCQ: r.cq, RecvCQ: r.cq}} {
		if _, err := r.pd.CreateQP(a); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v: %v", a.Type, err)
		}
	}
}

// TestXRCSRQGoes: an SRQ is closed while a QP has one of its requests. The request is dropped
// without completion, and the QP can select another SRQ.
func TestXRCSRQGoes(t *testing.T) {
	r := newRig(t)
	x := must(r.dev.OpenXRCD(nil, 0))(t)
	target := r.l.qps[must(x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t).Num()]
	srq := func(id uint64) *verbs.SRQ {
		s := must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}, XRCD: x, CQ: r.cq}))(t)
		postIDs(t, s, id)
		return s
	}
	gone, kept := srq(1), srq(2)
	target.locked(func() {
		if target.SelectSRQ(gone.Num()) == nil || target.Recv() == nil {
			t.Fatal("the QP gets no request")
		}
	})
	check(t, gone.Close())
	target.locked(func() {
		switch {
		case target.SelectSRQ(gone.Num()) != nil:
			t.Fatal("a closed SRQ can be selected")
		case target.SelectSRQ(kept.Num()) == nil:
			t.Fatal("another SRQ cannot be selected")
		}
		if wr := target.Recv(); wr == nil || wr.WRID != 2 {
			t.Fatalf("the next request is %+v", wr)
		}
		target.CompleteRecv(&verbs.WC{}, false)
	})
	if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0].WRID != 2 {
		t.Errorf("got %+v", wcs)
	}
}

// TestOpenQPRaces: QPs are opened while others are created and closed. A QP that OpenQP returns
// exists until its Close.
func TestOpenQPRaces(t *testing.T) {
	r := newRig(t)
	x := must(r.dev.OpenXRCD(nil, 0))(t)
	nums, done := make(chan uint32), make(chan bool)
	go func() {
		defer close(done)
		for num := range nums {
			for range 2 { // while it is closed
				if qp, err := x.OpenQP(num); err == nil {
					if qp.State() != verbs.StateReset || qp.Close() != nil {
						t.Error("an opened QP is closed")
					}
				}
			}
		}
	}()
	for range 200 {
		qp := must(x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t)
		nums <- qp.Num()
		check(t, qp.Close())
	}
	close(nums)
	<-done
	check(t, x.Close())
}
