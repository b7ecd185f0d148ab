package dropin

import (
	"encoding"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Settings are the settings of a program's devices, and the one table of them. A field is a flag of
// softrnic run, whose Command embeds Settings, and an environment variable that the drop-in
// libraries read. softrnic run passes the flags to the libraries as variables, as they were given.
// The type of a field parses and checks both. Its tags:
//
//	var      the environment variable, which the flag's help shows. (With kong's tag env, kong
//	         would read the variable for every command.)
//	kong     kong:"-" makes it a variable only. The help of softrnic run lists those that have help;
//	         the others are for softrnic's own use
//	unset    the value of a setting that is not given, for types that have no useful zero value
//	help, placeholder, name, sep, type, negatable
//	         as in all commands (see kong). help says what is allowed, and the default
//
// A flag that is repeated, or has parts that are separated by commas, is a slice. A bool is 1 or 0
// in the environment. config.go has what each setting does, and the rules for several together.
type Settings struct {
	Link       PerRail                `var:"SOFTRNIC_LINK" placeholder:"LINK" help:"The link of the devices, as --link of the other commands. Default: the machine's own addresses over its own UDP and TCP sockets, shared with other programs of this user. kernel:all creates devices on each interface with a global address; softrnic devinfo --link kernel:all shows them."`
	Addr       []string               `var:"SOFTRNIC_ADDR" sep:"none" placeholder:"CIDR" help:"Address of the devices, as --addr of the other commands; repeatable."`
	Shared     *bool                  `var:"SOFTRNIC_SHARED" negatable:"" help:"With --link kernel[:INTERFACE]: share the addresses with other programs of this user, which is the default. --no-shared: do not share them."`
	Device     PerRail                `var:"SOFTRNIC_DEVICE" placeholder:"ROCE[,IWARP]" help:"Names of the RoCE and the iWARP device: mlx5_0,siw0. With a comma at the end there is no iWARP device; without a comma it is named after the RoCE device. Default: softrnic0,softrnic0_iw."`
	Selective  bool                   `var:"SOFTRNIC_SELECTIVE_REPEAT" name:"selective-repeat" help:"RoCEv2: retransmit only lost packets if the peer is a SoftRNIC with this flag, as --selective-repeat of the other commands."`
	Congestion bool                   `var:"SOFTRNIC_CONGESTION" help:"RoCEv2: slow down when the network marks packets (ECN), by DCQCN, as --congestion of the other commands."`
	ByDelay    bool                   `var:"SOFTRNIC_CONGESTION_BY_DELAY" name:"congestion-by-delay" help:"RoCEv2: slow down when packets are delayed, as --congestion-by-delay of the other commands."`
	RxeFlush   bool                   `var:"SOFTRNIC_RXE_FLUSH" name:"rxe-flush" help:"RoCEv2: the peers are Linux's rxe, and FLUSHes have the ICRC of rxe, as --rxe-flush of the other commands."`
	Card       PerRail                `var:"SOFTRNIC_CARD" placeholder:"CARD" help:"Give the RoCE device the identity of a card, for programs and tools that expect one: PCI path and IDs, NUMA node, rate, and its driver's device names, without an iWARP device. connectx5, connectx6dx, connectx7, connectx8, bluefield3, bcm57508 or e810. It changes nothing else. Default: no card."`
	Peermem    *bool                  `var:"SOFTRNIC_PEERMEM" negatable:"" help:"Show the program /sys/module/nvidia_peermem/version, by which NCCL, UCX and NVSHMEM know that cards reach the memory of GPUs. --no-peermem: do not. Default: show it if NVIDIA's driver is there."`
	GUID       PerRail                `var:"SOFTRNIC_GUID" name:"guid" placeholder:"GUID" help:"The GUID of the RoCE device, such as 0002:c903:0012:3456, and the system image GUID of both devices. The iWARP device's differs in the last bit. With several rails, a GUID for each, separated by semicolons. Default: formed from the MAC address."`
	Speed      Parsed[gigabits]       `var:"SOFTRNIC_SPEED" placeholder:"GBPS" help:"The rate that the devices' ports report, in Gbit/s: 25, 100, 200, 400 … It does not change the rate of packets. Default: 40, or the card's."`
	Width      Parsed[lanes]          `var:"SOFTRNIC_WIDTH" placeholder:"LANES" help:"With --speed: the number of lanes that the ports report, 1, 2, 4, 8 or 12. Default: 4, or the next number that is possible with the rate."`
	Transport  Parsed[transports]     `var:"SOFTRNIC_TRANSPORT" kong:"-" unset:"roce,iwarp" help:"The wire protocols of rdma_cm: roce, iwarp, or both in the order of preference. It connects over the first that has the address. A listener for one address uses the first, and one for all addresses uses all. Port spaces other than TCP always use RoCE. The device of the first is the first of its rail in the list of devices. Default: roce,iwarp; with --tls or --tls-ca iwarp."`
	Log        Parsed[level]          `var:"SOFTRNIC_LOG" unset:"warn" name:"log-level" placeholder:"LEVEL" help:"The level of the libraries' log on stderr: debug, info, warn or error. Default: warn."`
	Top        bool                   `var:"SOFTRNIC_TOP" help:"Let softrnic top of this user show the program's queue pairs."`
	Trace      string                 `var:"SOFTRNIC_TRACE" type:"path" placeholder:"FILE" help:"Append the events of the program's queue pairs to this file, as --trace of the other commands. If the file cannot be written, as on a full disk, the exit status is at least 1."`
	Capture    string                 `var:"SOFTRNIC_CAPTURE" type:"path" placeholder:"FILE" help:"Write the packets of the program to this pcapng file, as --capture of the other commands. %p in the name is the process ID: a program with several processes needs it. With several rails, -1, -2, … follows the process ID, the number of the rail."`
	Impair     Parsed[node.Impairing] `var:"SOFTRNIC_IMPAIR" placeholder:"SPEC" help:"Make the program's link bad, for example loss=1%, as --impair of the other commands. softrnic impair changes it while the program runs; with none, nothing is impaired until then."`
	Fault      Parsed[node.Faulting]  `var:"SOFTRNIC_FAULT" placeholder:"RULES" help:"Make the program's devices fail on purpose, for example reg_mr=ENOMEM, as --fault of the other commands. softrnic fault changes the rules while the program runs."`
	Secure     string                 `var:"SOFTRNIC_SECURE" type:"path" placeholder:"FILE" help:"Encrypt and authenticate everything, as --secure of the other commands. A key is for one process at a time."`
	Peer       []Parsed[node.Peer]    `var:"SOFTRNIC_PEERS" placeholder:"[NAME=]KEY[@HOST[:PORT]]" help:"With --secure: a peer, as --peer of the other commands; repeatable, or separated by commas."`
	SecurePort Parsed[port]           `var:"SOFTRNIC_SECURE_PORT" name:"secure-port" placeholder:"PORT" help:"With --secure: the UDP port, as --secure-port of the other commands."`
	TLS        string                 `var:"SOFTRNIC_TLS" name:"tls" placeholder:"CERT,KEY" help:"iWARP over TLS 1.3, and no RoCE, as --tls of the other commands."`
	TLSCA      string                 `var:"SOFTRNIC_TLS_CA" name:"tls-ca" placeholder:"FILE" help:"With TLS: the authorities of peers' certificates, as --tls-ca of the other commands."`
	TLSName    string                 `var:"SOFTRNIC_TLS_NAME" name:"tls-name" placeholder:"NAME" help:"With TLS: the name in the certificates of servers, as --tls-name of the other commands."`
	Allow      []Parsed[node.Allowed] `var:"SOFTRNIC_ALLOW" placeholder:"HOST" help:"Let only these hosts reach the program, as --allow of the other commands: addresses, networks, and with --secure or TLS names and public keys of peers; separated by commas, repeatable."`
	Counters   string                 `var:"SOFTRNIC_COUNTERS" kong:"-" help:"A file to which the devices' counters are appended when the process ends, as one JSON object for each process. With softrnic run --sockets, the process is softrnic run, and its counters of connections (softrnic_sockets_…) are not in the file: only --metrics has these."`
	Command    string                 `var:"SOFTRNIC_COMMAND" kong:"-" help:"The file of the command softrnic, which starts the hub. Default: beside the libraries, in ../../bin from there, or in PATH."`
	Runner     int                    `var:"SOFTRNIC_RUN" kong:"-"`   // the process ID of the softrnic run --metrics that reads the counters of the program's devices
	Whole      string                 `var:"SOFTRNIC_WHOLE" kong:"-"` // a file of softrnic run, emptied if the trace, the capture or the counters could not be written

	given map[string]bool // the variables that were read; the other values are those of flags
}

// PerRail is a setting with a part for each rail, separated by semicolons.
type PerRail string

// parts returns the parts. There is at least one.
func (p PerRail) parts() []string {
	list := strings.Split(string(p), ";")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// Parsed is a setting that T's UnmarshalText parses, and its text. The zero Parsed was not given.
type Parsed[T any] struct {
	Value T
	text  string
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Parsed[T]) UnmarshalText(text []byte) error {
	p.text = string(text)
	return any(&p.Value).(encoding.TextUnmarshaler).UnmarshalText(text)
}

// String returns the text that was parsed.
func (p Parsed[T]) String() string { return p.text }

// values returns the values of a list.
func values[T any](list []Parsed[T]) (v []T) {
	for _, p := range list {
		v = append(v, p.Value)
	}
	return v
}

// fields yields the settings of the table. A value can be set.
func (s *Settings) fields() iter.Seq2[reflect.StructField, reflect.Value] {
	return func(yield func(reflect.StructField, reflect.Value) bool) {
		v := reflect.ValueOf(s).Elem()
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !yield(f, v.Field(i)) {
				return
			}
		}
	}
}

// Variables yields the settings that have a value, as environment variables, in the order of the
// table.
func (s *Settings) Variables() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for f, v := range s.fields() {
			if !v.IsZero() && !yield(f.Tag.Get("var"), text(v)) {
				return
			}
		}
	}
}

// VariablesOnly yields the environment variables that are no flags, with their help.
func VariablesOnly() iter.Seq2[string, string] {
	return func(yield func(name, help string) bool) {
		for f := range new(Settings).fields() {
			if help := f.Tag.Get("help"); help != "" && f.Tag.Get("kong") == "-" && !yield(f.Tag.Get("var"), help) {
				return
			}
		}
	}
}

// text is the inverse of parse.
func text(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		return text(v.Elem())
	case reflect.Bool:
		if v.Bool() {
			return "1"
		}
		return "0"
	case reflect.Slice:
		var list []string
		for i := range v.Len() {
			list = append(list, text(v.Index(i)))
		}
		return strings.Join(list, ",")
	}
	return fmt.Sprint(v.Interface())
}

// read sets what no flag has set, from the environment.
func (s *Settings) read(getenv func(string) string) error {
	if s.given == nil {
		s.given = map[string]bool{}
	}
	for f, v := range s.fields() {
		name := f.Tag.Get("var")
		value := getenv(name)
		if value == "" || !v.IsZero() {
			continue
		}
		s.given[name] = true
		if err := parse(v, value); err != nil {
			return fmt.Errorf("%s=%s: %w", name, value, err)
		}
	}
	return nil
}

// setDefaults gives the other settings their defaults.
func (s *Settings) setDefaults() error {
	for f, v := range s.fields() {
		if value := f.Tag.Get("unset"); value != "" && v.IsZero() {
			if err := parse(v, value); err != nil {
				return fmt.Errorf("the default of %s: %w", f.Tag.Get("var"), err)
			}
		}
	}
	return nil
}

// parse sets a setting to a value from the environment.
func parse(v reflect.Value, value string) error {
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return t.UnmarshalText([]byte(value))
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return parse(v.Elem(), value)
	case reflect.Bool:
		if value != "0" && value != "1" {
			return errors.New("must be 1 or 0")
		}
		v.SetBool(value == "1")
	case reflect.Int:
		n, err := strconv.Atoi(value)
		if err != nil {
			return errors.New("must be a number")
		}
		v.SetInt(int64(n))
	case reflect.Slice:
		for part := range strings.SplitSeq(value, ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			element := reflect.New(v.Type().Elem()).Elem()
			if err := parse(element, part); err != nil {
				return err
			}
			v.Set(reflect.Append(v, element))
		}
	default:
		v.SetString(value)
	}
	return nil
}

// source returns a setting as it was given, for an error: --speed 100, or SOFTRNIC_SPEED=100. field
// points to it.
func (s *Settings) source(field any) string {
	for f, v := range s.fields() {
		if v.Addr().Interface() != field {
			continue
		}
		name := f.Tag.Get("var")
		if s.given[name] {
			return name + "=" + text(v)
		}
		flag := f.Tag.Get("name")
		if flag == "" {
			flag = strings.ToLower(f.Name)
		}
		return "--" + flag + " " + text(v)
	}
	return ""
}
