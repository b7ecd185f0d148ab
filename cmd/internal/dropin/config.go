// Package dropin is shared by the drop-in libraries and softrnic run. It reads the description of
// the devices that programs see from the environment.
package dropin

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs"
)

// Config is the description of the devices by Settings.
//
// There can be up to MaxRails rails, each with its own link, addresses, and one or two devices. The
// settings PerRail, and the addresses, then have a part for each rail, separated by semicolons. The
// longest list is the number of rails. A single link or card is that of all rails. kernel:all is a
// rail for each interface of the machine that is up and has a global address, with that of the
// default route first. If SOFTRNIC_DEVICE has a single part, the numbers at the end of its names,
// or before _iw, increase from rail to rail.
//
// Instead of SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE, each rail may have a variable of its
// own, SOFTRNIC_RAIL_0 to SOFTRNIC_RAIL_7. Its parts have the same meaning and are separated by
// semicolons: link=kernel:eth0;addr=10.0.0.1;device=mlx5_0,mlx5_0_iw. A container has those of its
// devices. With link=kernel:all there is no other.
//
// For example, this describes mlx5_0 and mlx5_1, both RoCE:
//
//	SOFTRNIC_LINK=shm SOFTRNIC_ADDR="10.0.0.1/24;10.0.1.1/24" SOFTRNIC_DEVICE=mlx5_0,
type Config struct {
	Settings
	Rails      []Rail
	Transports []verbs.Transport // of rdma_cm
}

// Rail is a link with its addresses and devices.
type Rail struct {
	Flags       node.Flags
	RoCE, IWARP string // the devices' names; "": no device
	Card        *Card  // nil: none
}

// MaxRails is the most rails of a process.
const MaxRails = 8

// defaultLink uses the machine's own sockets and addresses.
const defaultLink = "kernel"

// FromEnv reads the environment and the file that SOFTRNIC_CONFIG names. The environment takes
// precedence.
func FromEnv(getenv func(string) string) (Config, error) { return Settings{}.Complete(getenv) }

// Complete is FromEnv for a command whose flags have set some settings, which take precedence. The
// error names the flag or the variable.
func (s Settings) Complete(getenv func(string) string) (Config, error) {
	return s.complete(getenv, node.EachInterface)
}

// Validate returns the error of FromEnv on a machine with two interfaces. A container has other
// interfaces than this machine.
func Validate(getenv func(string) string) error {
	_, err := Settings{}.complete(getenv, func(link string) ([]string, error) {
		if link == AllInterfaces {
			return []string{"kernel:eth0", "kernel:eth1"}, nil
		}
		return []string{link}, nil
	})
	return err
}

// complete is Complete. each returns the links that a link stands for.
func (s Settings) complete(getenv func(string) string, each func(link string) ([]string, error)) (c Config, err error) {
	if getenv, err = withFile(getenv); err != nil {
		return c, err
	}
	if err := s.read(getenv); err != nil {
		return c, err
	}
	if err := s.readRails(getenv); err != nil {
		return c, err
	}
	if s.Transport.text == "" && (s.TLS != "" || s.TLSCA != "") {
		s.Transport.Value = transports{verbs.IWARP}
	}
	if err := s.setDefaults(); err != nil {
		return c, err
	}
	links, err := s.links(each)
	if err != nil {
		return c, err
	}
	addrs, devices := s.addrs(), s.Device.parts()
	cards, err := s.cards()
	if err != nil {
		return c, err
	}
	guids, err := s.guids()
	if err != nil {
		return c, err
	}
	n := max(len(links), len(addrs), len(devices), len(cards), len(guids))
	switch {
	case n > MaxRails:
		return c, fmt.Errorf("SOFTRNIC_LINK, SOFTRNIC_ADDR, SOFTRNIC_DEVICE: %d rails: must be at most %d", n, MaxRails)
	case n > 1 && s.Secure != "":
		return c, fmt.Errorf("%s: it describes one rail, and SOFTRNIC_ADDR or SOFTRNIC_DEVICE describe %d", s.source(&s.Secure), n)
	case len(links) > 1 && len(links) < n:
		return c, fmt.Errorf("%s: %d links for %d rails: must be one, or one per rail", s.source(&s.Link), len(links), n)
	case len(addrs) < n && addrs[0] != "":
		return c, fmt.Errorf("%s: addresses for %d of %d rails: must be for all rails or for none", s.source(&s.Addr), len(addrs), n)
	case len(guids) < n && guids[0] != 0:
		return c, fmt.Errorf("%s: GUIDs for %d of %d rails: must be for all rails or for none", s.source(&s.GUID), len(guids), n)
	case len(devices) > 1 && len(devices) < n:
		return c, fmt.Errorf("%s: devices for %d of %d rails: must be for the first rail or for all", s.source(&s.Device), len(devices), n)
	case len(cards) > 1 && len(cards) < n:
		return c, fmt.Errorf("%s: cards for %d of %d rails: must be one, or one per rail", s.source(&s.Card), len(cards), n)
	}
	rate, err := s.rate()
	if err != nil {
		return c, err
	}
	seen := map[string]bool{"": true}
	for i := range n {
		var r Rail
		if r.Flags, err = s.flags(pick(links, i), pick(addrs, i)); err != nil {
			return c, err
		}
		r.Flags.Rate, r.Flags.GUID = rate, pick(guids, i)
		r.Flags.Capture = captureFile(s.Capture, i, n)
		names := pick(devices, i)
		if len(devices) == 1 {
			names = NumberedDevices(names, i)
		}
		if r.Card = pick(cards, i); r.Card != nil {
			if pick(devices, i) == "" {
				names = r.Card.defaultDevices(seen)
			}
			if rate == (node.Rate{}) {
				r.Flags.Rate = r.Card.rate
			}
		}
		if r.RoCE, r.IWARP, err = deviceNames(names); err != nil {
			return c, fmt.Errorf("%s: %w", s.source(&s.Device), err)
		}
		for _, name := range []string{r.RoCE, r.IWARP} {
			if name != "" && seen[name] {
				return c, fmt.Errorf("%s: two devices have the name %s", s.source(&s.Device), name)
			}
			seen[name] = true
		}
		c.Rails = append(c.Rails, r)
	}
	c.Settings, c.Transports = s, s.Transport.Value
	return c, nil
}

// AllInterfaces is the link that is a rail for each interface.
const AllInterfaces = "kernel:all"

// links returns the link of each rail, or one for all. AllInterfaces is a link for each interface.
func (s *Settings) links(each func(string) ([]string, error)) (list []string, err error) {
	for _, l := range s.Link.parts() {
		of, err := each(l)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.source(&s.Link), err)
		}
		if len(s.Addr) > 0 && !slices.Equal(of, []string{l}) {
			return nil, fmt.Errorf("%s: link %s has all addresses of each interface: leave it out", s.source(&s.Addr), l)
		}
		list = append(list, of...)
	}
	return list, nil
}

// addrs returns the addresses of each rail, separated by commas.
func (s *Settings) addrs() []string { return PerRail(strings.Join(s.Addr, ",")).parts() }

// pick returns the part of a rail. A single part belongs to all rails.
func pick[T any](list []T, rail int) T {
	if len(list) == 1 {
		return list[0]
	}
	return list[rail]
}

// flags returns the node's flags of a rail.
func (s *Settings) flags(link, addrs string) (f node.Flags, err error) {
	f = node.Flags{Selective: s.Selective, RxeFlush: s.RxeFlush, Congestion: s.Congestion, ByDelay: s.ByDelay, Trace: s.Trace,
		Secure: s.Secure, Peer: values(s.Peer), SecurePort: uint16(s.SecurePort.Value), Allow: values(s.Allow)}
	f.TLSFlags = node.TLSFlags{TLS: s.TLS, TLSCA: s.TLSCA, TLSName: s.TLSName}
	f.Log = slog.Level(s.Log.Value)
	if link == "" && s.Secure == "" {
		link = defaultLink
	}
	if link != "" {
		if err := f.Link.UnmarshalText([]byte(link)); err != nil {
			return f, fmt.Errorf("%s: %w", s.source(&s.Link), err)
		}
	}
	f.Shared = f.Medium() == "kernel"
	if s.Shared != nil {
		f.Shared = *s.Shared
	}
	for addr := range strings.SplitSeq(addrs, ",") {
		if addr = strings.TrimSpace(addr); addr != "" {
			var a node.CIDR
			if err := a.UnmarshalText([]byte(addr)); err != nil {
				return f, fmt.Errorf("%s: %w", s.source(&s.Addr), err)
			}
			f.Addr = append(f.Addr, a)
		}
	}
	// Kernels let a server send first. The server of ib_write_lat does so, and siw does not request
	// peer-to-peer mode.
	f.MPA.SendFirst = true
	if s.Impair.text != "" {
		f.Impair = &s.Impair.Value
	}
	if s.Fault.text != "" {
		f.Fault = &s.Fault.Value
	}
	return f, f.Check()
}

// captureFile returns the capture file of a rail: see Settings.Capture.
func captureFile(name string, rail, rails int) string {
	id := strconv.Itoa(os.Getpid())
	if rails > 1 {
		id += "-" + strconv.Itoa(rail+1)
	}
	return strings.ReplaceAll(name, "%p", id)
}

// rate returns the rate that the ports of all rails report.
func (s *Settings) rate() (node.Rate, error) {
	r := node.Rate{Gbps: float64(s.Speed.Value), Lanes: int(s.Width.Value)}
	if r.Gbps == 0 && r.Lanes != 0 {
		return r, fmt.Errorf("%s: the number of lanes is that of a speed: give --speed (SOFTRNIC_SPEED) too", s.source(&s.Width))
	}
	if r.Lanes != 0 {
		if err := new(verbs.PortAttr).SetRate(r.Gbps, r.Lanes); err != nil {
			return r, fmt.Errorf("%s, %s: %w", s.source(&s.Speed), s.source(&s.Width), err)
		}
	}
	return r, nil
}

// defaultDevice is the name of the first rail's RoCE device.
const defaultDevice = "softrnic0"

// iwarpSuffix follows the name of the RoCE device in the default name of the iWARP device.
const iwarpSuffix = "_iw"

// NumberedDevices returns the device names of a rail, given those of the first: mlx5_0,mlx5_0_iw
// becomes mlx5_1,mlx5_1_iw on the second rail. Without a name, they are softrnic0, softrnic1 and so
// on.
func NumberedDevices(value string, rail int) string {
	return renumber(value, func(first string) string {
		n, err := strconv.Atoi(first)
		if rail == 0 || err != nil {
			return first
		}
		return strconv.Itoa(n + rail)
	})
}

// PositionedDevices returns the device names of a rail in a position among the devices of a
// container. The position replaces the number of the rail's names: mlx5_0 and mlx5_4 both become
// mlx5_1 in position 1, and x becomes x1. So the names of all devices of a container differ,
// whatever the names of their rails are.
func PositionedDevices(value string, position int) string {
	return renumber(value, func(string) string { return strconv.Itoa(position) })
}

// renumber replaces the number of each name, at its end or before _iw. It is empty if there is
// none.
func renumber(value string, number func(old string) string) string {
	names := strings.Split(cmp.Or(value, defaultDevice), ",")
	for i, name := range names {
		if name == "" { // no device
			continue
		}
		numbered, iwarp := strings.CutSuffix(name, iwarpSuffix)
		stem := strings.TrimRight(numbered, "0123456789")
		names[i] = stem + number(numbered[len(stem):])
		if iwarp {
			names[i] += iwarpSuffix
		}
	}
	return strings.Join(names, ",")
}

// deviceNames returns the names of the RoCE and the iWARP device in a part of Settings.Device.
func deviceNames(value string) (roce, iwarp string, err error) {
	value = cmp.Or(value, defaultDevice)
	roce, iwarp, both := strings.Cut(value, ",")
	if !both {
		iwarp = roce + iwarpSuffix
	}
	for _, name := range []string{roce, iwarp} {
		if len(name) > 63 || name == "." || name == ".." || strings.ContainsAny(name, "/, ") || strings.ContainsFunc(name, unicode.IsControl) {
			return "", "", fmt.Errorf("%q is not a device name: must be 1 to 63 characters, a file name without spaces", name)
		}
	}
	if roce == "" && iwarp == "" {
		return "", "", errors.New("no device name: must name the RoCE device, the iWARP device, or both")
	}
	return roce, iwarp, nil
}

// withFile returns a getenv that reads variables missing from the environment from the file that
// SOFTRNIC_CONFIG names. It has lines such as SOFTRNIC_LINK=shm; empty lines and lines that begin
// with # are ignored.
func withFile(getenv func(string) string) (func(string) string, error) {
	file := getenv("SOFTRNIC_CONFIG")
	if file == "" {
		return getenv, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("SOFTRNIC_CONFIG: %w", err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case !ok || !strings.HasPrefix(name, "SOFTRNIC_"):
			return nil, fmt.Errorf("SOFTRNIC_CONFIG=%s: %q is not a line like SOFTRNIC_LINK=shm", file, line)
		default:
			values[name] = value
		}
	}
	return func(name string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return values[name]
	}, nil
}
