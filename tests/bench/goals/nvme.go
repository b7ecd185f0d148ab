//go:build linux

package main

// NVMe over Fabrics between softrnic's host and target, compared with the QPs below it.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// nvmeLink is a link on which NVMe is measured.
type nvmeLink struct {
	name  string
	links [2]string
}

var nvmeLinks = []nvmeLink{{"TAP", overTAP.links}, {"shm", overShm}}

// nvmeDepth is the number of commands and messages outstanding.
const nvmeDepth = "32"

// nvmeExperiments returns the experiments of all links.
func nvmeExperiments() (all []*experiment) {
	for _, transport := range []string{"RoCEv2", "iWARP"} {
		for _, on := range nvmeLinks {
			all = append(all, nvmeBandwidth(on, transport), nvmeRate(on, transport))
		}
	}
	return all
}

// nvmeBandwidth compares reads of 1 MiB with the QP's WRITE.
func nvmeBandwidth(on nvmeLink, transport string) *experiment {
	return single(&row{What: fmt.Sprintf("NVMe, reads of 1 MiB, %s, %s", transport, on.name), Goal: 0.8, Unit: "Gbit/s",
		Against: "the QP's WRITE"},
		nvmeReads(on, transport, "1M", func(r *nvmeResult) float64 { return r.Bandwidth * 8 / 1e9 }),
		gbps(between(on.links, nil, "write", "bw", "--size", "1048576", "--buffer", "33554432", "--depth", nvmeDepth,
			"--transport", strings.ToLower(transport))))
}

// nvmeRate compares reads of 4 KiB with the three messages of one: the command, the data and the
// completion.
func nvmeRate(on nvmeLink, transport string) *experiment {
	messages := []struct{ op, size string }{{"send", "64"}, {"write", "4096"}, {"send", "16"}}
	return single(&row{What: fmt.Sprintf("NVMe, random reads of 4 KiB, %s, %s", transport, on.name), Goal: 0.5, Unit: "10⁶/s",
		Against: "SEND 64, WRITE 4096 and SEND 16"},
		nvmeReads(on, transport, "4K", func(r *nvmeResult) float64 { return r.IOPS / 1e6 }),
		func(ctx context.Context, l *lab) (float64, error) {
			var microseconds float64 // of one message of each kind
			for _, m := range messages {
				rate, err := mpps(between(on.links, nil, m.op, "rate", "--size", m.size, "--depth", nvmeDepth,
					"--transport", strings.ToLower(transport)))(ctx, l)
				if err != nil {
					return 0, err
				}
				microseconds += 1 / rate
			}
			return 1 / microseconds, nil
		})
}

// nvmeResult is the output of softrnic nvme bench.
type nvmeResult struct {
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bytes_per_second"`
}

// nvmeReads measures random reads of a namespace in memory.
func nvmeReads(on nvmeLink, transport, size string, figure func(*nvmeResult) float64) sample {
	const nqn, port = "nqn.2014-08.org.softrnic:goals", 4420
	return func(ctx context.Context, l *lab) (float64, error) {
		var r nvmeResult
		err := l.withServer(ctx, l.inside, server, "serving", func() error {
			return l.output(ctx, client, &r, l.softrnic, "nvme", "bench", "10.88.0.2:"+strconv.Itoa(port), "--bs", size, "--depth", nvmeDepth,
				"--transport", strings.ToLower(transport), "--duration", l.duration.String(), "--json", "--link", on.links[0],
				"--addr", "10.88.0.1/24")
		}, "nvme", "serve", "--namespace", "memory,size=64M", "--nqn", nqn, "--port", strconv.Itoa(port), "--link", on.links[1],
			"--addr", "10.88.0.2/24")
		return figure(&r), err
	}
}
