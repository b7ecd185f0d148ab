package fabric

import (
	"fmt"
	"maps"
	"strings"
	"text/template"
	"time"
)

// The network of TestNS3, and what it does. Each leaf has a cable to each spine with the rate of a
// host's, or one to a single spine with that of all. The configurations and the text have their
// numbers from here.
const (
	ns3Leaves, ns3HostsPerLeaf, ns3Spines = 4, 8, 4
	ns3Hosts                              = ns3Leaves * ns3HostsPerLeaf

	ns3Rate    = 100 // Gbit/s of a host
	ns3Uplinks = ns3Spines * ns3Rate
	ns3Delay   = time.Microsecond
	ns3Payload = 1024 // bytes of a packet
	ns3Buffer  = 32   // MB of a switch of ns-3

	// Bytes that a full packet takes of a cable.
	ofNS3  = ns3Payload + 14 + 20 + 8 + 6
	ofOurs = ns3Payload + 14 + 20 + 8 + 12 + 4 + 24

	// Marks: kB of a queue, and their share.
	ns3Kmin, ns3Kmax = 400, 1600
	ns3Pmax          = 0.2

	// DCQCN: increases, by so many Mbit/s, updates of alpha, decreases, and SoftRNIC's CNPs.
	ns3RPTimer      = 300 * time.Microsecond
	ns3AI, ns3HAI   = 20, 200
	ns3AlphaEach    = time.Microsecond
	ns3DecreaseEach = 4 * time.Microsecond
	ns3CNPsEach     = time.Microsecond

	ns3Senders     = 16 // to one receiver
	ns3IncastBytes = 1_000_000
	ns3Runs        = 3 // of both, for processor time
	ns3Hashes      = 8 // for averages
)

// ns3Loads are shares of the hosts' cables.
var ns3Loads = []float64{0.3, 0.5}

// triedOnce has results with a SoftRNIC that was changed for them, and is not in the tree: ratios
// of the means with one spine at both loads, then means and medians in microseconds with all.
var triedOnce = map[string]string{"ratios": "1.00 and 1.03", "hashes": "8", "means": "426 and 505", "medians": "27 and 47"}

// during is the time in which flows of a load begin.
const during = 2 * time.Millisecond

// ns3Config is a file of HPCC's simulator: what its run.py writes for DCQCN.
var ns3Config = inText(`ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE {{.payload}}
TOPOLOGY_FILE topology.txt
FLOW_FILE flow.txt
TRACE_FILE trace.txt
TRACE_OUTPUT_FILE mix.tr
FCT_OUTPUT_FILE fct.txt
PFC_OUTPUT_FILE pfc.txt
SIMULATOR_STOP_TIME 2.2
CC_MODE 1
ALPHA_RESUME_INTERVAL {{.alphaEach}}
RATE_DECREASE_INTERVAL {{.decreaseEach}}
CLAMP_TARGET_RATE 0
RP_TIMER {{.timer}}
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI {{.ai}}Mb/s
RATE_HAI {{.hai}}Mb/s
MIN_RATE 100Mb/s
DCTCP_RATE_AI 1000Mb/s
ERROR_RATE_PER_LINK 0
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
L2_BACK_TO_ZERO 0
HAS_WIN 0
GLOBAL_T 1
VAR_WIN 0
FAST_REACT 0
U_TARGET 0.95
MI_THRESH 0
INT_MULTI 1
MULTI_RATE 0
SAMPLE_FEEDBACK 0
PINT_LOG_BASE 1.01
PINT_PROB 1
RATE_BOUND 1
ACK_HIGH_PRIO 1
LINK_DOWN 0 0 0
ENABLE_TRACE 0
KMAX_MAP 2 {{.rate}}000000000 {{.kmax}} {{.uplinks}}000000000 {{.kmax}}
KMIN_MAP 2 {{.rate}}000000000 {{.kmin}} {{.uplinks}}000000000 {{.kmin}}
PMAX_MAP 2 {{.rate}}000000000 {{.pmax}} {{.uplinks}}000000000 {{.pmax}}
BUFFER_SIZE {{.buffer}}
QLEN_MON_FILE qlen.txt
QLEN_MON_START 4000000000
QLEN_MON_END 4000000000
`, nil)

// ourConfig are lines of ns3.toml.
var ourConfig = inText(`leaves = {{.leaves}}
hosts = {{.perLeaf}}
spines = {{.spines}}
rate = "{{.rate}}G"
delay = "{{.delay}}us"
ecn = { min = "{{.kmin}}kB", max = "{{.kmax}}kB", p = {{.pmax}} }
mtu = {{.payload}}
rpg_ai_rate = "{{.ai}}M"
rpg_hai_rate = "{{.hai}}M"
rpg_time_reset = "{{.timer}}us"
dce_tcp_rtt = "{{.alphaEach}}us"
rate_reduce_monitor_period = "{{.decreaseEach}}us"
min_time_between_cnps = "{{.cnpsEach}}us"
`, nil)

// inText puts the constants above, and further values, into a text. Times are in microseconds.
func inText(text string, more map[string]any) string {
	values := map[string]any{"leaves": ns3Leaves, "perLeaf": ns3HostsPerLeaf, "spines": ns3Spines, "hosts": ns3Hosts, "rate": ns3Rate,
		"uplinks": ns3Uplinks, "delay": ns3Delay.Microseconds(), "payload": ns3Payload, "kmin": ns3Kmin, "kmax": ns3Kmax, "pmax": ns3Pmax,
		"percent": 100 * ns3Pmax, "later": ns3Kmin * 8 / ns3Rate, "buffer": ns3Buffer, "timer": ns3RPTimer.Microseconds(), "ai": ns3AI,
		"hai": ns3HAI, "alphaEach": ns3AlphaEach.Microseconds(), "decreaseEach": ns3DecreaseEach.Microseconds(),
		"cnpsEach": ns3CNPsEach.Microseconds(), "during": during.Milliseconds(), "runs": ns3Runs, "hashes": ns3Hashes,
		"theirBytes": ofNS3, "ourBytes": ofOurs, "least": percent(ns3Loads[0]), "once": triedOnce}
	maps.Copy(values, more)
	var b strings.Builder
	if err := template.Must(template.New("").Option("missingkey=error").Parse(text)).Execute(&b, values); err != nil {
		panic(err)
	}
	return b.String()
}

// percent is a share as text.
func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
