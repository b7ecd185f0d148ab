package node

import (
	"encoding/json"
	"errors"
	"os"
	"sync"

	"github.com/softrnic/softrnic/link/cable"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// Faulting is the value of --fault: rules of package fault.
type Faulting struct {
	rules []fault.Rule
	text  string
}

// UnmarshalText parses rules.
func (f *Faulting) UnmarshalText(text []byte) (err error) {
	f.text = string(text)
	f.rules, err = fault.Parse(f.text)
	return err
}

// Faults makes a node's device fail on purpose. Rules may change while the node runs. Before the
// first, the device has no injector.
type Faults struct {
	dev   *verbs.Device
	host  Host
	cable *cable.Link // nil without --fault
	trace trace.Sink

	mu sync.Mutex
	of *fault.Device
}

// Device returns the device's faults, and prepares the device for them at the first call.
func (f *Faults) Device() (*fault.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of != nil {
		return f.of, nil
	}
	cfg := &fault.Config{Trace: f.trace}
	if f.cable != nil {
		cfg.Ports = []fault.Port{f.cable}
	}
	if h, ok := f.host.(*netstack.Host); ok {
		for _, n := range h.Interfaces() {
			cfg.Addresses = append(cfg.Addresses, n)
		}
	} else {
		cfg.KernelAddresses = "use ip addr del and ip addr add"
	}
	of, err := fault.New(f.dev, cfg)
	if err == nil {
		f.of = of
	}
	return of, err
}

// Add adds rules. none ends those that there are.
func (f *Faults) Add(text string) error {
	rules, err := fault.Parse(text)
	if err != nil {
		return err
	}
	d, err := f.Device()
	if err != nil {
		return err
	}
	return d.Add(rules...)
}

// List returns the rules and the number of all faults so far.
func (f *Faults) List() (rules []fault.State, injected uint64) {
	f.mu.Lock()
	of := f.of
	f.mu.Unlock()
	if of == nil {
		return nil, 0
	}
	return of.List(), of.Injected()
}

// SitesVariable names the file to which AppendSites appends. softrnic fault --sweep sets it.
const SitesVariable = "SOFTRNIC_FAULT_SITES"

// Sites is what a rule could have hit in a process, and what rules have hit.
type Sites struct {
	PID      int               `json:"pid"`
	Sites    map[string]uint64 `json:"sites"` // see fault.Device
	Injected uint64            `json:"injected"`
}

// AppendSites appends a Sites as a JSON object to the file of SitesVariable, if that is set and the
// device was prepared for rules.
func (f *Faults) AppendSites() error {
	file := os.Getenv(SitesVariable)
	f.mu.Lock()
	of := f.of
	f.mu.Unlock()
	if file == "" || of == nil {
		return nil
	}
	line, err := json.Marshal(Sites{os.Getpid(), of.Sites(), of.Injected()})
	if err != nil {
		return err
	}
	to, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = to.Write(append(line, '\n'))
	return errors.Join(err, to.Close())
}
