package metrics_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/metrics"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

func Example() {
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		panic(err)
	}
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		panic(err)
	}
	dev.MeasureLatency()
	prometheus.MustRegister(metrics.NewCollector(dev))
	http.Handle("/metrics", promhttp.Handler())
	// http.ListenAndServe("localhost:9477", nil)
}

// cable is a link that does not implement link.Shared, so that all messages are sent in frames.
type cable struct{ link.Link }

// node opens a device.
func node(t *testing.T, l link.Link, addr string) *verbs.Device {
	t.Helper()
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// value returns the value of a metric. The name is followed by its labels.
func value(t *testing.T, c prometheus.Collector, metric string) (v float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%s", l.GetName(), l.GetValue()))
			}
			if metric == fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ",")) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Errorf("there is no %s", metric)
	return 0
}

// TestCollector sends data in packets and directly, and checks the metrics and the QP's own
// counters.
func TestCollector(t *testing.T) {
	const size, count = 10_000, 5
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/direct=%t", transport, direct), func(t *testing.T) {
				lan := new(pipe.Switch)
				var links [2]link.Link
				for i := range links {
					if links[i] = lan.Port(); !direct {
						links[i] = cable{links[i]}
					}
				}
				server, client := node(t, links[0], "10.0.0.1/24"), node(t, links[1], "10.0.0.2/24")
				client.MeasureLatency()
				collector := metrics.NewCollector(client)
				l, err := rdmacm.Listen(server, ":7471", &rdmacm.Config{Transports: []verbs.Transport{transport}})
				if err != nil {
					t.Fatal(err)
				}
				dialled := make(chan *rdmacm.Conn, 1)
				go func() {
					c, err := rdmacm.Dial(t.Context(), client, "10.0.0.1:7471", &rdmacm.Config{Transports: []verbs.Transport{transport}})
					if err != nil {
						t.Error(err)
					}
					dialled <- c
				}()
				a, err := l.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				b := <-dialled
				if t.Failed() {
					return
				}
				to, err := a.PD().RegMR(make([]byte, size), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
				if err != nil {
					t.Fatal(err)
				}
				from, err := b.PD().RegMR(make([]byte, size), 0)
				if err != nil {
					t.Fatal(err)
				}
				for range count {
					if err := b.QP().PostSend(&verbs.SendWR{
						Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, size)},
						RemoteAddr: to.Addr(), RKey: to.RKey(),
					}); err != nil {
						t.Fatal(err)
					}
					var wcs [1]verbs.WC
					for n := 0; n == 0; {
						if n, err = b.SendCQ().Poll(wcs[:]); err != nil || n == 1 && wcs[0].Status != verbs.WCSuccess {
							t.Fatal(wcs[0].Status, err)
						}
					}
				}

				label := strings.ToLower(transport.String())
				if n := value(t, collector, "softrnic_send_latency_seconds{device="+client.Name()+",transport="+label+"}"); n < count {
					t.Errorf("the latencies of %v requests", n)
				}
				if n := value(t, collector, "softrnic_qps{device="+client.Name()+",state=RTS,transport="+label+",type=RC}"); n != 1 {
					t.Errorf("%v QPs", n)
				}
				value(t, collector, "node_infiniband_info{board_id=softrnic,device="+client.Name()+",firmware_version=1.0,hca_type=softrnic}")
				sent := value(t, collector, "node_infiniband_port_data_transmitted_bytes_total{device="+client.Name()+",port=1}")
				if (sent > size*count) != (transport == verbs.RoCEv2 && !direct) {
					t.Errorf("%v bytes in RoCE packets", sent)
				}
				s, err := b.QP().Stats()
				if err != nil || s.Peer.String() != "10.0.0.1" || s.Sends != 0 || s.SendsCompleted.Count < count {
					t.Errorf("%+v, %v", s, err)
				}
				peer, err := a.QP().Stats()
				if err != nil || peer.Peer.String() != "10.0.0.2" || peer.DestQPNum != 0 && peer.DestQPNum != b.QP().Num() {
					t.Errorf("%+v, %v", peer, err)
				}
				switch {
				case transport == verbs.RoCEv2:
					if s.Counters["sent_bytes"] < size*count || peer.Counters["rcvd_bytes"] < size*count ||
						(s.Counters["direct_msgs"] == count) != direct {
						t.Errorf("%v\n%v", s.Counters, peer.Counters)
					}
				case direct:
					if s.Counters["iwarp_direct_msgs"] != count {
						t.Errorf("%v", s.Counters)
					}
				default:
					// A WRITE over iWARP completes when TCP has accepted it, so the peer may still
					// be receiving.
					late := time.After(10 * time.Second)
					for peer.Counters["iwarp_rcv_bytes"] < s.Counters["iwarp_xmit_bytes"] {
						select {
						case <-late:
							t.Fatalf("%v\n%v", s.Counters, peer.Counters)
						default:
							runtime.Gosched()
						}
						peer, _ = a.QP().Stats()
					}
					if s.Counters["iwarp_xmit_bytes"] <= size*count || s.Counters["iwarp_xmit_bytes"] != peer.Counters["iwarp_rcv_bytes"] {
						t.Errorf("%v\n%v", s.Counters, peer.Counters)
					}
				}

				registry := prometheus.NewPedanticRegistry()
				registry.MustRegister(collector)
				if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
					t.Error(problems, err)
				}
			})
		}
	}
}

// TestDashboard checks that the metrics used by the Grafana dashboard exist.
func TestDashboard(t *testing.T) {
	dashboard, err := os.ReadFile("grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(dashboard, &content); err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 1000)
	metrics.NewCollector(node(t, new(pipe.Switch).Port(), "10.0.0.1/24")).Describe(descs)
	close(descs)
	var known string
	for d := range descs {
		known += d.String()
	}
	asked := 0
	for _, p := range content.Panels {
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`\b(node_infiniband|softrnic)_[a-z_]+`).FindAllString(target.Expr, -1) {
				asked++
				if name = strings.TrimSuffix(name, "_bucket"); !strings.Contains(known, `"`+name+`"`) {
					t.Errorf("there is no %s", name)
				}
			}
		}
	}
	if asked < 20 {
		t.Errorf("the dashboard uses %d metrics", asked)
	}
}
