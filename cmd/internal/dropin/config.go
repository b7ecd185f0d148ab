// Package dropin is shared by the drop-in libraries and softrnic run. It reads the description of
// the devices that programs see from the environment.
package dropin

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs"
)

// Config is the description of the devices in the environment:
//
//	SOFTRNIC_LINK    the link, as --link of the command softrnic. Default: the machine's own
//	                 addresses, shared with other processes through a hub, of this user or of
//	                 the machine (--link kernel --shared)
//	SOFTRNIC_ADDR    addresses, as --addr, separated by commas
//	SOFTRNIC_SHARED  1: as --shared, the default for every link kernel; 0: no address is shared
//	SOFTRNIC_SELECTIVE_REPEAT  1: as --selective-repeat
//	SOFTRNIC_DEVICE  the names of the RoCE and the iWARP device, separated by a comma; an empty
//	                 name removes the device. Default: softrnic0,softrnic0_iw. Without a comma
//	                 the iWARP device is named after the RoCE device
//	SOFTRNIC_SPEED   the rate that ports report, in Gbit/s: 2.5 to 1200. Default: 40. It does not
//	                 change the rate of packets
//	SOFTRNIC_WIDTH   the number of lanes of that rate: 1, 2, 4, 8 or 12. Default: 4, if possible
//	SOFTRNIC_CARD    the card whose identity the RoCE devices take, such as connectx7: PCI IDs and
//	                 path, rate, and the default names of devices. Default: none
//	SOFTRNIC_TRANSPORT  the wire protocols of rdma_cm: roce, iwarp, or both in the order of
//	                 preference. Default: roce,iwarp. It connects over the first that has the
//	                 address. A listener for one address uses the first, and one for all addresses
//	                 uses all. Port spaces other than TCP always use RoCE. The device of the first
//	                 is the first of its rail in the list of devices
//	SOFTRNIC_LOG     debug, info, warn or error
//	SOFTRNIC_TRACE   a file to which the events of queue pairs are appended, as with --trace
//	SOFTRNIC_CAPTURE a file for the packets, as with --capture. %p in its name is the process ID.
//	                 With several rails, -1, -2, … follows it, the number of the rail
//	SOFTRNIC_IMPAIR  an impairment of the link, as --impair, such as loss=1%; none: softrnic impair
//	                 may set one later
//	SOFTRNIC_SECURE  a file with the private key of a tunnel, as --secure
//	SOFTRNIC_PEERS   the peers of the tunnel, as --peer, separated by commas
//	SOFTRNIC_SECURE_PORT  the UDP port of the tunnel, as --secure-port
//	SOFTRNIC_TLS     the files of a certificate and its key, as --tls. The default of
//	                 SOFTRNIC_TRANSPORT is then iwarp
//	SOFTRNIC_TLS_CA  the file of the authorities of peers' certificates, as --tls-ca
//	SOFTRNIC_TLS_NAME  the name in the certificates of servers, as --tls-name
//	SOFTRNIC_ALLOW   the hosts that may reach the devices, as --allow, separated by commas
//	SOFTRNIC_COUNTERS  a file to which the devices' counters are appended when the process ends, as
//	                 one JSON object for each process. With softrnic run --sockets, the process is
//	                 softrnic run. Its counters of connections (softrnic_sockets_…) are not in the
//	                 file: only --metrics has these
//	SOFTRNIC_TOP     1: softrnic top of the same user shows the program's queue pairs
//	SOFTRNIC_RUN     the process ID of the softrnic run --metrics that reads the counters of the
//	                 program's devices
//	SOFTRNIC_WHOLE   a file of the softrnic run that waits for the program. It is emptied if the
//	                 trace or the counters could not be written
//	SOFTRNIC_COMMAND the file of the command softrnic, which starts the hub. Default: next to the
//	                 libraries, in ../../bin, or in PATH
//	SOFTRNIC_DIRECTORY  a directory such as /tmp, below which the processes of a user find each
//	                 other, instead of XDG_RUNTIME_DIR. Default in containers: /dev/shm
//	SOFTRNIC_CONFIG  a file with lines of these variables, such as SOFTRNIC_LINK=shm. The
//	                 environment takes precedence. Empty lines and lines that begin with # are
//	                 ignored
//
// There can be up to MaxRails rails, each with its own link, addresses, and one or two devices.
// SOFTRNIC_LINK, SOFTRNIC_ADDR and SOFTRNIC_DEVICE then have a part for each rail, separated by
// semicolons. The longest list is the number of rails. A single link is used by all rails. So is a
// single card; SOFTRNIC_CARD may also have a part for each rail.
// kernel:all is a rail for each interface of the machine that is up and has a global address, with
// that of the default route first. If SOFTRNIC_DEVICE has a single part, the numbers at the end of
// its names, or before _iw, increase from rail to rail.
//
// Instead of these three variables, each rail may have one of its own, SOFTRNIC_RAIL_0 to
// SOFTRNIC_RAIL_7. Its parts have the same meaning and are separated by semicolons:
// link=kernel:eth0;addr=10.0.0.1;device=mlx5_0,mlx5_0_iw. A container has those of its devices.
// With link=kernel:all there is no other.
//
// For example, this describes mlx5_0 and mlx5_1, both RoCE:
//
//	SOFTRNIC_LINK=shm SOFTRNIC_ADDR="10.0.0.1/24;10.0.1.1/24" SOFTRNIC_DEVICE=mlx5_0,
type Config struct {
	Rails      []Rail
	Transports []verbs.Transport // of rdma_cm
	Counters   string
	Top        bool
	Run        int    // SOFTRNIC_RUN
	Whole      string // SOFTRNIC_WHOLE
	Command    string // SOFTRNIC_COMMAND
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

// FromEnv reads the environment and the file that SOFTRNIC_CONFIG names.
func FromEnv(getenv func(string) string) (c Config, err error) {
	return readEnv(getenv, node.EachInterface)
}

// Validate returns the error of FromEnv on a machine with two interfaces. A container has other
// interfaces than this machine.
func Validate(getenv func(string) string) error {
	_, err := readEnv(getenv, func(link string) ([]string, error) {
		if link == AllInterfaces {
			return []string{"kernel:eth0", "kernel:eth1"}, nil
		}
		return []string{link}, nil
	})
	return err
}

// readEnv is FromEnv. each returns the links that a link stands for.
func readEnv(getenv func(string) string, each func(link string) ([]string, error)) (c Config, err error) {
	if file := getenv("SOFTRNIC_CONFIG"); file != "" {
		if getenv, err = withFile(getenv, file); err != nil {
			return c, err
		}
	}
	if getenv, err = withRails(getenv); err != nil {
		return c, err
	}
	links, err := eachInterface(parts(getenv("SOFTRNIC_LINK")), getenv("SOFTRNIC_ADDR"), each)
	if err != nil {
		return c, err
	}
	addrs, devices := parts(getenv("SOFTRNIC_ADDR")), parts(getenv("SOFTRNIC_DEVICE"))
	card, parted, err := railCards(getenv("SOFTRNIC_CARD"))
	if err != nil {
		return c, err
	}
	n := max(len(links), len(addrs), len(devices), parted)
	switch {
	case n > MaxRails:
		return c, fmt.Errorf("SOFTRNIC_LINK, SOFTRNIC_ADDR, SOFTRNIC_DEVICE: %d rails: must be at most %d", n, MaxRails)
	case n > 1 && getenv("SOFTRNIC_SECURE") != "":
		return c, fmt.Errorf("SOFTRNIC_SECURE: it describes one rail, and SOFTRNIC_ADDR or SOFTRNIC_DEVICE describe %d", n)
	case len(links) > 1 && len(links) < n:
		return c, fmt.Errorf("SOFTRNIC_LINK=%s: %d links for %d rails: must be one, or one per rail", getenv("SOFTRNIC_LINK"), len(links),
			n)
	case len(addrs) < n && addrs[0] != "":
		return c, fmt.Errorf("SOFTRNIC_ADDR=%s: addresses for %d of %d rails: must be for all rails or for none", getenv("SOFTRNIC_ADDR"),
			len(addrs), n)
	case len(devices) > 1 && len(devices) < n:
		return c, fmt.Errorf("SOFTRNIC_DEVICE=%s: devices for %d of %d rails: must be for the first rail or for all",
			getenv("SOFTRNIC_DEVICE"), len(devices), n)
	case parted > 1 && parted < n:
		return c, fmt.Errorf("SOFTRNIC_CARD=%s: cards for %d of %d rails: must be one, or one per rail", getenv("SOFTRNIC_CARD"), parted, n)
	}
	rate, err := portRate(getenv("SOFTRNIC_SPEED"), getenv("SOFTRNIC_WIDTH"))
	if err != nil {
		return c, err
	}
	seen := map[string]bool{"": true}
	for i := range n {
		var r Rail
		if r.Flags, err = flags(getenv, pick(links, i), pick(addrs, i)); err != nil {
			return c, err
		}
		r.Flags.Rate = rate
		r.Flags.Capture = captureFile(getenv("SOFTRNIC_CAPTURE"), i, n)
		names := pick(devices, i)
		if len(devices) == 1 {
			names = NumberedDevices(names, i)
		}
		if r.Card = card(i); r.Card != nil {
			if pick(devices, i) == "" {
				names = r.Card.defaultDevices(seen)
			}
			if rate == (node.Rate{}) {
				r.Flags.Rate = r.Card.rate
			}
		}
		if r.RoCE, r.IWARP, err = deviceNames(names); err != nil {
			return c, err
		}
		for _, name := range []string{r.RoCE, r.IWARP} {
			if name != "" && seen[name] {
				return c, fmt.Errorf("SOFTRNIC_DEVICE=%s: two devices have the name %s", getenv("SOFTRNIC_DEVICE"), name)
			}
			seen[name] = true
		}
		c.Rails = append(c.Rails, r)
	}
	transport := getenv("SOFTRNIC_TRANSPORT")
	if transport == "" && (getenv("SOFTRNIC_TLS") != "" || getenv("SOFTRNIC_TLS_CA") != "") {
		transport = "iwarp"
	}
	c.Transports, err = transports(transport)
	c.Counters, c.Command, c.Top = getenv("SOFTRNIC_COUNTERS"), getenv("SOFTRNIC_COMMAND"), getenv("SOFTRNIC_TOP") == "1"
	c.Run, _ = strconv.Atoi(getenv("SOFTRNIC_RUN"))
	c.Whole = getenv("SOFTRNIC_WHOLE")
	return c, err
}

// AllInterfaces is the link that is a rail for each interface.
const AllInterfaces = "kernel:all"

// eachInterface replaces a link AllInterfaces by a link for each interface.
func eachInterface(links []string, addrs string, each func(string) ([]string, error)) (list []string, err error) {
	for _, l := range links {
		of, err := each(l)
		if err != nil {
			return nil, fmt.Errorf("SOFTRNIC_LINK: %w", err)
		}
		if addrs != "" && !slices.Equal(of, []string{l}) {
			return nil, fmt.Errorf("SOFTRNIC_ADDR=%s: link %s has all addresses of each interface: leave it out", addrs, l)
		}
		list = append(list, of...)
	}
	return list, nil
}

// parts returns the parts of a value, one for each rail. There is at least one.
func parts(value string) []string {
	list := strings.Split(value, ";")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// pick returns the part of a rail. A single part belongs to all rails.
func pick(list []string, rail int) string {
	if len(list) == 1 {
		return list[0]
	}
	return list[rail]
}

// flags returns the node's flags of a rail.
func flags(getenv func(string) string, link, addrs string) (f node.Flags, err error) {
	text := func(name, value string, into interface{ UnmarshalText([]byte) error }) {
		if e := into.UnmarshalText([]byte(value)); e != nil && err == nil {
			err = fmt.Errorf("%s: %w", name, e)
		}
	}
	for _, name := range []string{"SOFTRNIC_SHARED", "SOFTRNIC_SELECTIVE_REPEAT"} {
		if v := getenv(name); v != "" && v != "0" && v != "1" {
			return f, fmt.Errorf("%s=%s: must be 1 or 0", name, v)
		}
	}
	f.Selective = getenv("SOFTRNIC_SELECTIVE_REPEAT") == "1"
	text("SOFTRNIC_LINK", cmp.Or(link, defaultLink), &f.Link)
	if e := secure(&f, getenv, link); e != nil && err == nil {
		err = e
	}
	f.TLSFlags = node.TLSFlags{TLS: getenv("SOFTRNIC_TLS"), TLSCA: getenv("SOFTRNIC_TLS_CA"), TLSName: getenv("SOFTRNIC_TLS_NAME")}
	shared := getenv("SOFTRNIC_SHARED")
	f.Shared = shared == "1" || shared == "" && f.Medium() == "kernel"
	for addr := range strings.SplitSeq(addrs, ",") {
		if addr = strings.TrimSpace(addr); addr != "" {
			var a node.CIDR
			text("SOFTRNIC_ADDR", addr, &a)
			f.Addr = append(f.Addr, a)
		}
	}
	for host := range strings.SplitSeq(getenv("SOFTRNIC_ALLOW"), ",") {
		if host = strings.TrimSpace(host); host != "" {
			var a node.Allowed
			text("SOFTRNIC_ALLOW", host, &a)
			f.Allow = append(f.Allow, a)
		}
	}
	// Kernels let a server send first. The server of ib_write_lat does so, and siw does not request
	// peer-to-peer mode.
	f.MPA.SendFirst = true
	f.Trace = getenv("SOFTRNIC_TRACE")
	if spec := getenv("SOFTRNIC_IMPAIR"); spec != "" {
		f.Impair = new(node.Impairing)
		text("SOFTRNIC_IMPAIR", spec, f.Impair)
	}
	f.Log = slog.LevelWarn
	if level := getenv("SOFTRNIC_LOG"); level != "" {
		text("SOFTRNIC_LOG", level, &f.Log)
	}
	return f, err
}

// secure sets the flags of a tunnel.
func secure(f *node.Flags, getenv func(string) string, link string) error {
	f.Secure = getenv("SOFTRNIC_SECURE")
	if f.Secure == "" {
		return nil
	}
	if link == "" {
		f.Link = node.LinkSpec{} // not the default
	}
	for text := range strings.SplitSeq(getenv("SOFTRNIC_PEERS"), ",") {
		if text = strings.TrimSpace(text); text != "" {
			var p node.Peer
			if err := p.UnmarshalText([]byte(text)); err != nil {
				return fmt.Errorf("SOFTRNIC_PEERS: %w", err)
			}
			f.Peer = append(f.Peer, p)
		}
	}
	if port := getenv("SOFTRNIC_SECURE_PORT"); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return fmt.Errorf("SOFTRNIC_SECURE_PORT=%s: must be a port, 1 to 65535", port)
		}
		f.SecurePort = uint16(n)
	}
	return nil
}

// captureFile returns the capture file of a rail: see SOFTRNIC_CAPTURE.
func captureFile(name string, rail, rails int) string {
	id := strconv.Itoa(os.Getpid())
	if rails > 1 {
		id += "-" + strconv.Itoa(rail+1)
	}
	return strings.ReplaceAll(name, "%p", id)
}

// portRate returns the rate that the ports of all rails report.
func portRate(speed, width string) (r node.Rate, err error) {
	if speed == "" && width == "" {
		return r, nil
	}
	if r.Gbps, err = strconv.ParseFloat(speed, 64); err != nil {
		return r, fmt.Errorf("SOFTRNIC_SPEED=%s, SOFTRNIC_WIDTH=%s: the speed must be a number of Gbit/s, such as 100", speed, width)
	}
	if width != "" {
		if r.Lanes, err = strconv.Atoi(width); err != nil || r.Lanes == 0 {
			return r, fmt.Errorf("SOFTRNIC_WIDTH=%s: must be a number of lanes: 1, 2, 4, 8 or 12", width)
		}
	}
	if err := new(verbs.PortAttr).SetRate(r.Gbps, r.Lanes); err != nil {
		return r, fmt.Errorf("SOFTRNIC_SPEED=%s, SOFTRNIC_WIDTH=%s: %w", speed, width, err)
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

// deviceNames returns the names of the RoCE and the iWARP device in a part of SOFTRNIC_DEVICE.
func deviceNames(value string) (roce, iwarp string, err error) {
	value = cmp.Or(value, defaultDevice)
	roce, iwarp, both := strings.Cut(value, ",")
	if !both {
		iwarp = roce + iwarpSuffix
	}
	for _, name := range []string{roce, iwarp} {
		if len(name) > 63 || strings.ContainsAny(name, "/, \t\n") {
			return "", "", fmt.Errorf("SOFTRNIC_DEVICE=%s: %q is not a device name: must be 1 to 63 characters without slashes "+
				"and spaces", value, name)
		}
	}
	if roce == "" && iwarp == "" {
		return "", "", fmt.Errorf("SOFTRNIC_DEVICE=%s: no device name: must name the RoCE device, the iWARP device, or both", value)
	}
	return roce, iwarp, nil
}

// transports returns the wire protocols in SOFTRNIC_TRANSPORT.
func transports(value string) (list []verbs.Transport, err error) {
	if value == "" {
		return []verbs.Transport{verbs.RoCEv2, verbs.IWARP}, nil
	}
	for name := range strings.SplitSeq(value, ",") {
		t, ok := map[string]verbs.Transport{"roce": verbs.RoCEv2, "iwarp": verbs.IWARP}[strings.TrimSpace(name)]
		if !ok || slices.Contains(list, t) {
			return nil, fmt.Errorf("SOFTRNIC_TRANSPORT=%s: must be roce, iwarp, or both, separated by a comma", value)
		}
		list = append(list, t)
	}
	return list, nil
}

// withFile returns a getenv that reads variables missing from the environment from a file.
func withFile(getenv func(string) string, file string) (func(string) string, error) {
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
