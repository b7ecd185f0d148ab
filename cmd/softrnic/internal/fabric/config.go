package fabric

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/softrnic/softrnic/link"
	network "github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
)

// config is the content of a file.
type config struct {
	Seed      int64        `toml:"seed"`
	Until     duration     `toml:"until"`
	Topology  topology     `toml:"topology"`
	Link      linkConfig   `toml:"link"`
	Switch    switchConfig `toml:"switch"`
	RDMA      rdmaConfig   `toml:"rdma"`
	Workloads []workload   `toml:"workload"`
	Failures  []failure    `toml:"failure"`

	dir   string // of the file: names of other files are relative to it
	given given
}

// given has the keys of a table that a file or a flag has given a value, which may be zero. Those
// of tables within it have names with dots.
type given map[string]bool

// addKeys adds the keys of a table.
func (g *given) addKeys(prefix string, table map[string]any) {
	if *g == nil {
		*g = given{}
	}
	for key, v := range table {
		(*g)[prefix+key] = true
		if within, ok := v.(map[string]any); ok {
			g.addKeys(prefix+key+".", within)
		}
	}
}

// tables returns the tables of an array.
func tables(v any) (all []map[string]any) {
	switch v := v.(type) {
	case []map[string]any:
		return v
	case []any:
		for _, e := range v {
			t, _ := e.(map[string]any)
			all = append(all, t)
		}
	}
	return all
}

type linkConfig struct {
	Rate  rate     `toml:"rate"`
	Delay duration `toml:"delay"`
}

type switchConfig struct {
	Buffer  size        `toml:"buffer"`
	Alpha   float64     `toml:"alpha"`
	Queue   size        `toml:"queue"`
	ECMP    string      `toml:"ecmp"`
	Weights []int       `toml:"weights"`
	ECN     *ecnConfig  `toml:"ecn"`
	PFC     *pfcConfig  `toml:"pfc"`
	Trim    *trimConfig `toml:"trim"`
}

type ecnConfig struct {
	Min size    `toml:"min"`
	Max size    `toml:"max"`
	P   float64 `toml:"p"`

	AtDeparture bool `toml:"at_departure"`
}

type pfcConfig struct {
	Classes  []int `toml:"classes"`
	Xoff     size  `toml:"xoff"`
	Xon      size  `toml:"xon"`
	Headroom size  `toml:"headroom"`
}

type trimConfig struct {
	DSCP int  `toml:"dscp"`
	Size size `toml:"size"`
}

type rdmaConfig struct {
	MTU             int          `toml:"mtu"`
	Window          size         `toml:"window"`
	SelectiveRepeat bool         `toml:"selective_repeat"`
	ByDelay         bool         `toml:"by_delay"`
	Message         size         `toml:"message"`
	QPs             int          `toml:"qps"`
	DSCP            int          `toml:"dscp"`
	Timeout         int          `toml:"timeout"`
	DCQCN           *dcqcnConfig `toml:"dcqcn"`
}

// dcqcnConfig has the parameters of roce.DCQCN, with their names in mlx5.
type dcqcnConfig struct {
	Enabled                 *bool    `toml:"enabled"`
	RPGMaxRate              rate     `toml:"rpg_max_rate"`
	RPGMinRate              rate     `toml:"rpg_min_rate"`
	RPGAIRate               rate     `toml:"rpg_ai_rate"`
	RPGHAIRate              rate     `toml:"rpg_hai_rate"`
	RPGTimeReset            duration `toml:"rpg_time_reset"`
	RPGByteReset            size     `toml:"rpg_byte_reset"`
	RPGThreshold            int      `toml:"rpg_threshold"`
	RPGGD                   int      `toml:"rpg_gd"`
	RPGMinDecFac            int      `toml:"rpg_min_dec_fac"`
	DCETCPG                 int      `toml:"dce_tcp_g"`
	DCETCPRTT               duration `toml:"dce_tcp_rtt"`
	RateReduceMonitorPeriod duration `toml:"rate_reduce_monitor_period"`
	InitialAlphaValue       int      `toml:"initial_alpha_value"`
	RateToSetOnFirstCNP     rate     `toml:"rate_to_set_on_first_cnp"`
	MinTimeBetweenCNPs      duration `toml:"min_time_between_cnps"`
}

// on says whether devices control congestion: the table is there, and does not disable it.
func (d *dcqcnConfig) on() bool { return d != nil && (d.Enabled == nil || *d.Enabled) }

// Limits of a file.
const (
	maxFile     = 1 << 20 // bytes
	maxHosts    = 1 << 14
	maxSwitches = 1 << 12
	maxCables   = 1 << 17
	maxFlows    = 1 << 20
	maxQPs      = 256     // of a connection
	maxOpen     = 1 << 18 // QPs at a time
	maxList     = 1 << 10
)

// load reads a file, unless its name is empty, and the settings of flags.
func load(name string, settings []string) (*config, error) {
	var text []byte
	if name != "" {
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return nil, err
		case info.Size() > maxFile:
			return nil, fmt.Errorf("%s has %d bytes: it must have at most %d", name, info.Size(), maxFile)
		}
		if text, err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	c := &config{dir: filepath.Dir(name)}
	if err := c.add(string(text)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, s := range settings {
		if err := c.add(s); err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
	}
	return c, nil
}

// add decodes a text, whose values replace earlier ones.
func (c *config) add(text string) error {
	if len(text) > maxFile {
		return fmt.Errorf("%d bytes: there must be at most %d", len(text), maxFile)
	}
	workloads, failures := c.Workloads, c.Failures
	c.Workloads, c.Failures = nil, nil
	md, err := toml.Decode(text, c)
	if err != nil {
		return err
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("there is no key %s", unknown[0])
	}
	var all map[string]any
	if _, err := toml.Decode(text, &all); err != nil {
		return err
	}
	c.given.addKeys("", all)
	for i, t := range tables(all["workload"]) {
		c.Workloads[i].given.addKeys("", t)
	}
	for i, t := range tables(all["failure"]) {
		c.Failures[i].given.addKeys("", t)
	}
	if t, ok := all["topology"].(map[string]any); ok {
		c.Topology.given.addKeys("", t)
		for i, cable := range tables(t["cable"]) {
			c.Topology.Cables[i].given.addKeys("", cable)
		}
	}
	c.Workloads, c.Failures = append(workloads, c.Workloads...), append(failures, c.Failures...)
	return nil
}

// spec returns KIND:KEY=VALUE,… as an inline table. A list has commas too.
func spec(text string) string {
	kind, rest, _ := strings.Cut(text, ":")
	table := "{kind = " + strconv.Quote(kind)
	for depth, from, i := 0, 0, 0; i <= len(rest) && rest != ""; i++ {
		switch {
		case i == len(rest) || rest[i] == ',' && depth == 0:
			table += ", " + setting(rest[from:i])
			from = i + 1
		case rest[i] == '[':
			depth++
		case rest[i] == ']':
			depth--
		}
	}
	return table + "}"
}

// setting returns KEY=VALUE with a value of TOML. A value that is none is a text.
func setting(text string) string {
	key, value, _ := strings.Cut(text, "=")
	if _, err := toml.Decode("v="+value, new(map[string]any)); err != nil || value == "" {
		value = strconv.Quote(value)
	}
	return key + "=" + value
}

// complete sets defaults and checks all values but those of workloads and failures, which depend on
// the topology.
func (c *config) complete() error {
	g := c.given
	def(g, "until", &c.Until, duration(time.Second))
	def(g, "link.rate", &c.Link.Rate, 100e9)
	def(g, "link.delay", &c.Link.Delay, duration(time.Microsecond))
	def(g, "switch.alpha", &c.Switch.Alpha, 1)
	def(g, "switch.ecmp", &c.Switch.ECMP, "flow")
	def(g, "rdma.mtu", &c.RDMA.MTU, 4096)
	def(g, "rdma.message", &c.RDMA.Message, 64<<10)
	def(g, "rdma.qps", &c.RDMA.QPs, 1)
	def(g, "rdma.dscp", &c.RDMA.DSCP, 26)
	def(g, "rdma.timeout", &c.RDMA.Timeout, 10)
	if _, ok := ecmps[c.Switch.ECMP]; !ok {
		return fmt.Errorf("switch.ecmp is %q: it must be \"flow\", \"qp\" or \"spray\"", c.Switch.ECMP)
	}
	if c.RDMA.MTU == 0 || verbs.MTUFor(c.RDMA.MTU).Bytes() != c.RDMA.MTU {
		return fmt.Errorf("rdma.mtu is %d: it must be 256, 512, 1024, 2048 or 4096", c.RDMA.MTU)
	}
	s, r := &c.Switch, &c.RDMA
	checks := []check{
		{"seed", float64(c.Seed), 0, math.MaxInt64},
		{"until", time.Duration(c.Until).Seconds(), 1e-9, maxTime.Seconds()},
		{"link.rate", float64(c.Link.Rate), 1e6, 8e12},
		{"link.delay", time.Duration(c.Link.Delay).Seconds(), 0, 1},
		{"switch.alpha", s.Alpha, 1e-6, 1e6},
		{"switch.buffer", float64(s.Buffer), g.least("switch.buffer"), 1 << 30},
		{"switch.queue", float64(s.Queue), g.least("switch.queue"), 1 << 30},
		{"rdma.message", float64(r.Message), 1, 16 << 20},
		{"rdma.window", float64(r.Window), g.least("rdma.window"), 1 << 50},
		{"rdma.qps", float64(r.QPs), 1, maxQPs},
		{"rdma.dscp", float64(r.DSCP), 0, 63},
		{"rdma.timeout", float64(r.Timeout), 1, 31},
	}
	if e := s.ECN; e != nil {
		def(g, "switch.ecn.p", &e.P, 1)
		checks = append(checks, check{"switch.ecn.max", float64(e.Max), 1, 1 << 30}, check{"switch.ecn.min", float64(e.Min), 0, float64(e.Max)},
			check{"switch.ecn.p", e.P, 0, 1})
	}
	if p := s.PFC; p != nil {
		def(g, "switch.pfc.classes", &p.Classes, []int{r.DSCP >> 3})
		for i, class := range p.Classes {
			checks = append(checks, check{fmt.Sprintf("switch.pfc.classes[%d]", i), float64(class), 0, 7})
		}
		checks = append(checks, check{"switch.pfc.xoff", float64(p.Xoff), 1, 1 << 30},
			check{"switch.pfc.xon", float64(p.Xon), 0, float64(p.Xoff)},
			check{"switch.pfc.headroom", float64(p.Headroom), 0, 1 << 30})
	}
	if t := s.Trim; t != nil {
		def(g, "switch.trim.dscp", &t.DSCP, 10)
		def(g, "switch.trim.size", &t.Size, 98)
		checks = append(checks, check{"switch.trim.dscp", float64(t.DSCP), 1, 63}, check{"switch.trim.size", float64(t.Size), 74, 4096})
	}
	if len(s.Weights) > 8 {
		return fmt.Errorf("switch.weights has %d numbers: there are 8 classes", len(s.Weights))
	}
	for i, w := range s.Weights {
		checks = append(checks, check{fmt.Sprintf("switch.weights[%d]", i), float64(w), 0, 1000})
	}
	if d := r.DCQCN; d != nil {
		for _, n := range []check{ // roce.DCQCN has no zeros but those of what is not given
			{"rpg_threshold", float64(d.RPGThreshold), 0, 1 << 20}, {"rpg_gd", float64(d.RPGGD), 0, 31},
			{"rpg_min_dec_fac", float64(d.RPGMinDecFac), 0, 100}, {"dce_tcp_g", float64(d.DCETCPG), 0, 1024},
			{"initial_alpha_value", float64(d.InitialAlphaValue), 0, 1024}, {"rpg_byte_reset", float64(d.RPGByteReset), 0, 1<<31 - 1},
			{"rpg_time_reset", float64(d.RPGTimeReset), 0, math.MaxInt64}, {"dce_tcp_rtt", float64(d.DCETCPRTT), 0, math.MaxInt64},
			{"rate_reduce_monitor_period", float64(d.RateReduceMonitorPeriod), 0, math.MaxInt64},
			{"min_time_between_cnps", float64(d.MinTimeBetweenCNPs), 0, math.MaxInt64},
		} {
			n.name = "rdma.dcqcn." + n.name
			n.least = g.least(n.name)
			checks = append(checks, n)
		}
	}
	return runChecks(checks)
}

// least is the least value of a key whose zero means that it is not given.
func (g given) least(key string) float64 {
	if g[key] {
		return 1
	}
	return 0
}

// check is a bound of a value.
type check struct {
	name        string
	value       float64
	least, most float64
}

func runChecks(all []check) error {
	for _, c := range all {
		if !(c.value >= c.least && c.value <= c.most) {
			return fmt.Errorf("%s is %v: it must be %v to %v", c.name, c.value, c.least, c.most)
		}
	}
	return nil
}

// def sets a value that is not given.
func def[T any](g given, key string, v *T, to T) {
	if !g[key] {
		*v = to
	}
}

// orNone returns a value of the network's configuration, in which 0 is a default.
func orNone[T ~int | ~int64](v T, is bool) T {
	if is && v == 0 {
		return network.None
	}
	return v
}

var ecmps = map[string]network.ECMP{"flow": network.HashFlow, "qp": network.HashQP, "spray": network.Spray}

// fabric returns the configuration of the network.
func (c *config) fabric() (*network.Config, error) {
	t, err := c.Topology.build()
	if err != nil {
		return nil, err
	}
	s := &c.Switch
	n := &network.Config{Topology: t, Seed: uint64(c.Seed),
		Link:   network.Link{Rate: float64(c.Link.Rate), Delay: orNone(time.Duration(c.Link.Delay), true)},
		MTU:    max(c.RDMA.MTU+104, link.MinMTU),
		Switch: network.Switch{Buffer: int(s.Buffer), Alpha: s.Alpha, Queue: int(s.Queue), ECMP: ecmps[s.ECMP]}}
	copy(n.Switch.Weights[:], s.Weights)
	if e := s.ECN; e != nil {
		n.Switch.ECN = network.ECN{Min: int(e.Min), Max: int(e.Max), P: e.P, AtDeparture: e.AtDeparture}
	}
	if p := s.PFC; p != nil {
		n.Switch.PFC = network.PFC{Xoff: int(p.Xoff), Xon: orNone(int(p.Xon), c.given["switch.pfc.xon"]),
			Headroom: orNone(int(p.Headroom), c.given["switch.pfc.headroom"])}
		for _, class := range p.Classes {
			n.Switch.PFC.Classes |= 1 << class
		}
	}
	if t := s.Trim; t != nil {
		n.Switch.Trim = network.Trim{DSCP: uint8(t.DSCP), Size: int(t.Size)}
	}
	return n, nil
}

// device returns the configuration of the hosts' devices.
func (c *config) device() (roce.Config, error) {
	r := &c.RDMA
	n := roce.Config{Window: int(r.Window), SelectiveRepeat: r.SelectiveRepeat}
	if t := c.Switch.Trim; t != nil {
		n.TrimmedDSCP = uint8(t.DSCP)
	}
	if r.ByDelay {
		n.ByDelay = &roce.ByDelay{}
	}
	if d := r.DCQCN; d.on() {
		def(c.given, "rdma.dcqcn.rpg_max_rate", &d.RPGMaxRate, c.Link.Rate)
		n.DCQCN = &roce.DCQCN{RPGMaxRate: int64(d.RPGMaxRate), RPGMinRate: int64(d.RPGMinRate), RPGAIRate: int64(d.RPGAIRate),
			RPGHAIRate: int64(d.RPGHAIRate), RPGTimeReset: time.Duration(d.RPGTimeReset), RPGByteReset: int(d.RPGByteReset),
			RPGThreshold: d.RPGThreshold, RPGGD: d.RPGGD, RPGMinDecFac: d.RPGMinDecFac, DCETCPG: d.DCETCPG,
			DCETCPRTT: time.Duration(d.DCETCPRTT), RateReduceMonitorPeriod: time.Duration(d.RateReduceMonitorPeriod),
			InitialAlphaValue: d.InitialAlphaValue, RateToSetOnFirstCNP: int64(d.RateToSetOnFirstCNP),
			MinTimeBetweenCNPs: time.Duration(d.MinTimeBetweenCNPs)}
	}
	if n.DCQCN != nil && n.ByDelay != nil {
		return n, errors.New("rdma.by_delay and rdma.dcqcn: a connection has one of the two")
	}
	return n, nil
}
