package fault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
)

// Config is what [New] needs besides the device. What is nil cannot fail: rules of it are refused.
type Config struct {
	// Ports are the links of the device's ports, in their order.
	Ports []Port
	// Addresses are the interfaces of the device's ports, in their order.
	Addresses []Addresses
	// Trace is called for each injected fault, on the goroutine that it hits.
	Trace trace.Sink
	// KernelAddresses says where the addresses are managed, if Addresses is nil.
	KernelAddresses string
}

// Port is a link whose carrier and MTU can be changed, such as that of package cable.
type Port interface {
	SetDown(down bool)
	// SetMTU sets the largest IP packet, in bytes. The error names the bounds.
	SetMTU(n int) error
}

// Addresses is an interface whose addresses can be changed, such as that of package netstack.
type Addresses interface {
	AddAddr(cidr string) error
	RemoveAddr(a netip.Addr) error
}

// Device is a device with rules.
type Device struct {
	dev *verbs.Device
	inj *verbs.Injection
	cfg Config
	// gone is set for good when a rule has removed the device.
	gone atomic.Bool

	// The timers that bring ports up again, by the port's index. cables is held while a port changes.
	cables sync.Mutex
	up     map[int]verbs.Timer

	mu     sync.Mutex // no other lock is taken while it is held
	rules  []*active
	sites  map[string]uint64   // see Sites
	chosen map[failure]*active // rules of requests that have not completed yet
	ended  uint64              // faults of rules that were ended
}

// active is a rule that applies.
type active struct {
	Rule
	random   *rand.Rand // for Rule.share
	timer    verbs.Timer
	seen     uint64 // what matched
	injected uint64
	done     bool // it acts once, and has
	ended    bool
	failed   string // why it could not be applied
}

// State is a rule and what it has done so far.
type State struct {
	Rule     string `json:"rule"`
	Seen     uint64 `json:"seen"`     // calls, requests, completions or events that matched
	Injected uint64 `json:"injected"` // how many of them failed, or how often it acted
	Error    string `json:"error,omitempty"`
}

var _ verbs.Injector = (*Device)(nil)

// New prepares a device for rules. A device has at most one Device; cfg may be nil.
func New(dev *verbs.Device, cfg *Config) (*Device, error) {
	f := &Device{dev: dev, up: make(map[int]verbs.Timer), sites: make(map[string]uint64), chosen: make(map[failure]*active)}
	if cfg != nil {
		f.cfg = *cfg
	}
	var err error
	f.inj, err = verbs.Inject(dev, f)
	return f, err
}

// Add adds rules, which apply until End; none is as End. Those that act at once have acted when it
// returns. The error says which rule cannot apply, and why; the rules after it are not added then.
func (f *Device) Add(rules ...Rule) error {
	for _, r := range rules {
		if r.kind == onNone {
			f.End()
			continue
		}
		if err := f.add(r); err != nil {
			return fmt.Errorf("fault: %s: %w", r.text, err)
		}
	}
	return nil
}

func (f *Device) add(r Rule) error {
	if err := f.check(&r); err != nil {
		return err
	}
	a := &active{Rule: r}
	if r.share > 0 {
		a.random = rand.New(rand.NewPCG(r.sel.seed, 0))
	}
	now := r.acts() && r.sel.after == 0 && r.sel.nth == 0
	if now {
		a.done = true
		n, err := f.act(a, 0)
		if err != nil {
			return err
		}
		a.injected = n
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, a)
	if r.acts() && r.sel.after > 0 {
		clock := f.dev.Clock()
		a.timer = clock.AfterFunc(r.sel.after, func() { clock.Go(func() { f.actLater(a, 0) }) }) // it may wait for copies
	}
	return nil
}

// check returns an error if a rule cannot apply to the device.
func (f *Device) check(r *Rule) error {
	port := int(max(r.sel.port, 1))
	if n := int(f.dev.QueryDevice().PhysPortCnt); port > n {
		return fmt.Errorf("the device has %d ports", n)
	}
	switch r.kind {
	case onPort, onMTU:
		if port > len(f.cfg.Ports) || f.cfg.Ports[port-1] == nil {
			return errors.New("the link cannot be taken down: start the program with --fault none, or with other rules")
		}
	case onAddr:
		if port > len(f.cfg.Addresses) || f.cfg.Addresses[port-1] == nil {
			if f.cfg.KernelAddresses != "" {
				return errors.New("the addresses are the machine's: " + f.cfg.KernelAddresses)
			}
			return errors.New("the addresses of this network stack cannot be changed")
		}
	case onCompletion:
		if r.sel.qp != 0 {
			qp := f.findQP(r.sel.qp)
			if qp == nil || r.status == 0 || r.sel.opcode == recv { // it may be created later
				return nil
			}
			if !anyPossible(r.status, qp.Type(), qp.Transport(), r.sel.opcode) {
				return fmt.Errorf("a request of QP %#x, %v over %v, cannot fail with %v", qp.Num(), qp.Type(), qp.Transport(), r.status)
			}
		}
	}
	return nil
}

func (f *Device) findQP(num uint32) *verbs.QP {
	for _, qp := range f.inj.QPs() {
		if qp.Num() == num {
			return qp
		}
	}
	return nil
}

// End ends all rules. What they have done stays: a QP in error, a port that is down for good, a
// device that is gone.
func (f *Device) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.rules {
		if a.timer != nil {
			a.timer.Stop()
		}
		a.ended = true
		f.ended += a.injected
	}
	f.rules = nil
}

// List returns the rules that apply, and what they have done.
func (f *Device) List() (all []State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.rules {
		all = append(all, State{a.text, a.seen, a.injected, a.failed})
	}
	return all
}

// Injected returns the number of faults of all rules so far, also of ended ones.
func (f *Device) Injected() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.ended
	for _, a := range f.rules {
		n += a.injected
	}
	return n
}

// Sites returns how often each call was made that a rule may name, and under "wc:opcode=send" and
// the like how many requests have completed, since New.
func (f *Device) Sites() map[string]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]uint64, len(f.sites))
	for name, n := range f.sites {
		all[name] = n
	}
	return all
}

// report passes an injected fault to the trace.
func (f *Device) report(rule string, qp *verbs.QP) {
	if f.cfg.Trace == nil {
		return
	}
	e := trace.Event{Time: f.dev.Clock().Now(), Type: trace.FaultInjected, Detail: rule}
	if qp != nil {
		e.QPN, e.Transport = qp.Num(), qp.Transport().String()
	}
	f.cfg.Trace(e)
}

// errGone is the errno of each call after the device is gone.
const errGone = syscall.EIO
