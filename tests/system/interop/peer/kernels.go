//go:build linux

package peer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// suites are the releases of Debian that peers can have, with their archives.
var suites = map[string][]string{
	"bookworm": {"bookworm", "bookworm-updates", "bookworm-security"},
	"trixie":   {"trixie", "trixie-updates", "trixie-security"},
	"sid":      {"sid"},
}

// Trait is something that the RDMA devices of some kernels do against the standards, in words.
// Tests ask for it where they depend on it.
type Trait string

// Traits.
const (
	SendErrorsFlushed Trait = "rxe completes local errors as WR_FLUSH_ERR: wrong SGEs of a SEND or WRITE, a failed BIND_MW or LOCAL_INV"
	// RetriesEndlessly: in the standard, 7 means this for RNR NAKs only.
	RetriesEndlessly Trait = "rxe repeats an unanswered request without end if retry_cnt is 7"
	FlushICRC        Trait = "rxe's ICRC of a FLUSH covers its headers twice, so that no other device answers it"
	ODPPlaces        Trait = "rxe with on-demand paging places each packet at the start of its page, sends from there, and reports success"
	// DropsPosted: seen on loaded machines.
	DropsPosted Trait = "rxe drops requests that were posted, and not sent yet, when their QP is destroyed: mckey -s waits for none"
	// CountsBytes: hw_counters' sent_bytes and rcvd_bytes, and counters, whose port_xmit_data is
	// sent_bytes / 4.
	CountsBytes    Trait = "rxe counts the bytes of its packets, from the IP header on, and has the files of counters besides hw_counters"
	OwnsPort       Trait = "rxe's module owns UDP port 4791 of the first network namespace, with or without a device"
	OwnsPortByNets Trait = "rxe owns UDP port 4791 of each network namespace with an rxe device"
	// SwapsTerminate: its structure begins with the lowest bits, where the RFC's figure has the
	// highest. It leaves errors of type 1 of DDP, layer 1, right.
	SwapsTerminate Trait = "siw on little-endian machines swaps the layer and the error type of each Terminate (RFC 5040 §4.8): " +
		"that for a wrong CRC, layer 2 (MPA) and type 0, names layer 0 (RDMAP) and type 2"
)

// differences say why the reports of softrnic conform differ between kernels, by the IDs of cases.
var differences = map[string]string{
	"LENGTH-LAST-EMPTY": "rxe of 6.1 takes a last packet without payload as the end of the message; later ones refuse it.",
	"CLOSE-STATE":       siwState,
	"DDP-TAGGED-ZERO":   siwState,
	"TERM-STATE":        siwState,
}

const siwState = "ibv_query_qp of siw of 6.1 says RESET for each state, so that the case cannot see it; later ones say the state."

// Kernel is a row of the table of kernels: a version of Linux and of rdma-core, and its traits.
type Kernel struct {
	Linux    version
	RDMACore version
	Traits   []Trait
	Dmabufs  bool // it exports dma-bufs: of a memfd (udmabuf), and of the system heap
	Newer    bool // a machine's Linux is newer than the table
}

// Has reports whether the kernel has a trait.
func (k Kernel) Has(t Trait) bool { return slices.Contains(k.Traits, t) }

// kernels are in the order of their versions.
var kernels = []Kernel{
	{Linux: version{6, 1}, RDMACore: version{44, 0}, Traits: []Trait{RetriesEndlessly, OwnsPort, SwapsTerminate}},
	{Linux: version{6, 12}, RDMACore: version{56, 1}, Dmabufs: true, Traits: []Trait{
		SendErrorsFlushed, RetriesEndlessly, FlushICRC, DropsPosted, OwnsPort, SwapsTerminate}},
	{Linux: version{7, 2}, RDMACore: version{65, 0}, Dmabufs: true, Traits: []Trait{
		SendErrorsFlushed, RetriesEndlessly, FlushICRC, DropsPosted, ODPPlaces, CountsBytes, OwnsPortByNets,
		SwapsTerminate}},
}

// version is the beginning of a version: major and minor.
type version [2]int

func (v version) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

func (v version) compare(w version) int { return slices.Compare(v[:], w[:]) }

func parseVersion(s string) (v version, err error) {
	fields := strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	for i := range v {
		if i == len(fields) {
			return v, fmt.Errorf("%q is no version", s)
		}
		if v[i], err = strconv.Atoi(fields[i]); err != nil {
			return v, err
		}
	}
	return v, nil
}

// identify finds the row of a machine with the given packages, lines of NAME_VERSION: the newest
// that is not newer than its kernel. versions are those of the machine. news are in words what is
// newer than the table; it is no error.
func identify(packages string) (row Kernel, versions string, news []string, err error) {
	find := func(prefix string) (v version, full string, err error) {
		for line := range strings.Lines(packages) {
			name, number, _ := strings.Cut(strings.TrimSpace(line), "_")
			if strings.HasPrefix(name, prefix) {
				v, err = parseVersion(number)
				return v, number, err
			}
		}
		return v, "", fmt.Errorf("the machine has no package %s", prefix)
	}
	linux, linuxFull, err := find("linux-image-")
	if err != nil {
		return row, "", nil, err
	}
	core, coreFull, err := find("libibverbs1")
	if err != nil {
		return row, "", nil, err
	}
	for _, k := range kernels {
		if k.Linux.compare(linux) <= 0 {
			row = k
		}
	}
	newest := kernels[len(kernels)-1]
	if row.Linux == (version{}) {
		return row, "", nil, fmt.Errorf("the machine has Linux %s, older than %v, the oldest of the table of kernels",
			linuxFull, kernels[0].Linux)
	}
	if linux.compare(newest.Linux) > 0 {
		row.Newer = true
		news = append(news, fmt.Sprintf("Linux %s, newer than %v, the newest of the table of kernels", linuxFull, newest.Linux))
	}
	if core.compare(newest.RDMACore) > 0 {
		news = append(news, fmt.Sprintf("rdma-core %s, newer than %v, the newest of the table of kernels", coreFull, newest.RDMACore))
	}
	return row, fmt.Sprintf("Linux %s, rdma-core %s", linuxFull, coreFull), news, nil
}
