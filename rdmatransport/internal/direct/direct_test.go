package direct_test

import (
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/internal/direct"
	"github.com/softrnic/softrnic/verbs"
)

// device is a provider of one QP that does nothing.
type device struct {
	verbs.Provider
	made verbs.QPHandle
}

func (d *device) QueryDevice() verbs.DeviceAttr {
	return verbs.DeviceAttr{MaxPD: 1, MaxQP: 1, MaxCQ: 1, MaxCQE: 1}
}
func (d *device) Watch(func(verbs.AsyncEventType, uint8)) {}

func (d *device) CreateQP(h verbs.QPHandle, _ *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	d.made = h
	return nil, 1, nil
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// endless is a QP that always has more to move. It notes what is to run on other goroutines.
type endless struct {
	later []func()
	sent  int
}

func (*endless) Oldest() uint32             { return 0 }
func (*endless) MoveSome() direct.Result    { return direct.More }
func (*endless) Flush()                     {}
func (*endless) MayContinue() direct.Result { return direct.More }
func (q *endless) SendAll()                 { q.sent++ }
func (q *endless) Go(f func())              { q.later = append(q.later, f) }

// TestRestTakesItsTurn: what a goroutine that serves others leaves behind is moved on one goroutine
// of the device's clock, for whose turn a simulation can wait.
func TestRestTakesItsTurn(t *testing.T) {
	d := &device{}
	pd := must(must(verbs.Open(d))(t).AllocPD())(t)
	cq := must(pd.Device().CreateCQ(1, nil))(t)
	must(pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq}))(t)
	q, m := &endless{}, direct.Mover(0)
	if got := m.Move(q, d.made); got != direct.Deferred || len(q.later) != 1 || !m.Moving() {
		t.Fatalf("result %v, %d goroutines", got, len(q.later))
	}
	q.later[0]()
	if q.sent != 1 || m.Moving() {
		t.Errorf("%d calls of SendAll", q.sent)
	}
}
