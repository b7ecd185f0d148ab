//go:build linux

package main

// Encrypted links, compared with the kernel's TCP through wireguard-go itself between the same
// namespaces.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netns"

	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/tests/internal/namespace"
)

// tunnelAddrs are the addresses in the tunnels.
var tunnelAddrs = [2]string{"10.91.0.1/24", "10.91.0.2/24"}

// secureExperiments returns the experiments of encrypted links.
func secureExperiments() []*experiment { return []*experiment{secureBandwidth(), secureLatency()} }

// secureBandwidth compares WRITEs with iperf3.
func secureBandwidth() *experiment {
	const against = "iperf3 through wireguard-go"
	rows := []*row{
		{What: "WRITE 64 KiB, RoCEv2, encrypted", Goal: 1.5, Unit: "Gbit/s", Against: against},
		{What: "WRITE 1 MiB, RoCEv2, encrypted", Goal: 1.5, Unit: "Gbit/s", Against: against},
		{What: "CPU seconds per GB of both sides, WRITE 64 KiB, RoCEv2, encrypted", Goal: 0.7, AtMost: true, Unit: "s/GB", Against: against},
		{What: "CPU seconds per GB of both sides, WRITE 1 MiB, RoCEv2, encrypted", Goal: 0.7, AtMost: true, Unit: "s/GB", Against: against},
	}
	return &experiment{rows, func(ctx context.Context, l *lab) error {
		var stream streamed
		err := l.withTunnel(ctx, func(tunnel func() (time.Duration, error)) error {
			before, err := tunnel()
			if err == nil {
				stream, err = l.iperf3(ctx, hostOf(tunnelAddrs[server]), 128<<10)
			}
			if err != nil {
				return err
			}
			after, err := tunnel()
			stream.used += after - before
			return err
		})
		if err != nil {
			return err
		}
		r, err := secured(append([]string{"write", "bw"}, bothSizes...)...)(ctx, l)
		if err != nil {
			return err
		}
		rows[0].add(r[0].Gbps, stream.gbps)
		rows[1].add(r[1].Gbps, stream.gbps)
		for i, p := range r[:2] {
			rows[2+i].add(p.CPUPerGB+p.PeerPerGB, stream.used.Seconds()/stream.bytes*1e9)
		}
		return nil
	}}
}

// secureLatency compares half a round trip with that of ping.
func secureLatency() *experiment {
	return single(&row{What: "SEND 8 bytes, RoCEv2, encrypted, half round trip, polling", Goal: 1.3, AtMost: true, Unit: "µs",
		Against: "ping through wireguard-go"},
		halfTrip(secured(latencyArgs...)),
		func(ctx context.Context, l *lab) (half float64, err error) {
			err = l.withTunnel(ctx, func(func() (time.Duration, error)) error {
				half, err = l.ping(ctx)
				return err
			})
			return half, err
		})
}

// secured runs softrnic perf between two namespaces over encrypted links.
func secured(args ...string) measurement {
	return func(ctx context.Context, l *lab) ([]perfResult, error) {
		sides := nodes([2]string{"pipe", "pipe"}, tunnelAddrs)
		keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
		for i := range sides {
			file := filepath.Join(l.dir, fmt.Sprintf("%d.key", i))
			if err := os.WriteFile(file, []byte(keys[i].Encode()+"\n"), 0o600); err != nil {
				return nil, err
			}
			peer := keys[1-i].Public().String()
			if side(i) == client {
				peer += "@" + hostOf(socketAddrs[server])
			}
			sides[i].flags = []string{"--secure", file, "--peer", peer}
		}
		return l.run(ctx, l.beyond, sides, nil, args...)
	}
}

func hostOf(cidr string) string {
	host, _, _ := strings.Cut(cidr, "/")
	return host
}

// withTunnel calls f while wireguard-go connects the two namespaces. cpu returns the processor time
// that both ends of the tunnel have used.
func (l *lab) withTunnel(ctx context.Context, f func(cpu func() (time.Duration, error)) error) (err error) {
	program := filepath.Join(l.dir, "wireguard")
	if _, err := os.Stat(program); err != nil {
		out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "golang.zx2c4.com/wireguard").CombinedOutput()
		if err != nil {
			return fmt.Errorf("build wireguard-go: %w: %s", err, out)
		}
	}
	keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
	var ends [2]*exec.Cmd
	for i, in := range []netns.NsHandle{l.inside, l.beyond} {
		name := fmt.Sprintf("wgy%d", i)
		end, err := l.start(ctx, in, side(i), io.Discard, io.Discard, program, "-f", name)
		if err != nil {
			return err
		}
		defer func() {
			_ = end.Process.Signal(os.Interrupt)
			_ = end.Wait()
		}()
		ends[i] = end
		if err := setTunnel(ctx, name, keys[i], keys[1-i].Public(), hostOf(socketAddrs[1-i])); err != nil {
			return err
		}
		if err := namespace.Do(in, func() error { return address(name, tunnelAddrs[i]) }); err != nil {
			return err
		}
	}
	return f(func() (time.Duration, error) {
		a, err := processorTime(ends[0].Process.Pid)
		b, errB := processorTime(ends[1].Process.Pid)
		return a + b, errors.Join(err, errB)
	})
}

// setTunnel gives a wireguard-go its keys and its peer, when it is up.
func setTunnel(ctx context.Context, name string, own wireguard.SecretKey, peer wireguard.PublicKey, host string) error {
	var conn net.Conn
	for {
		var err error
		if conn, err = net.Dial("unix", "/var/run/wireguard/"+name+".sock"); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wireguard-go: %w", errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "set=1\nprivate_key=%x\nlisten_port=51821\npublic_key=%x\nendpoint=%s:51821\nallowed_ip=0.0.0.0/0\n\n",
		own[:], peer[:], host); err != nil {
		return err
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err != nil || !strings.HasPrefix(string(answer[:n]), "errno=0") {
		return fmt.Errorf("wireguard-go says %q: %w", answer[:n], err)
	}
	return nil
}

// processorTime returns the time that a process has used.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	system, errS := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / 100, errors.Join(err, errS)
}

// streamed is the result of iperf3.
type streamed struct {
	gbps  float64
	bytes float64
	used  time.Duration // the processor time of both sides
}

// iperf3 sends a stream to an address of the other namespace, in writes of size bytes.
func (l *lab) iperf3(ctx context.Context, to string, size int) (s streamed, err error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	says, stdout, err := os.Pipe()
	if err != nil {
		return s, err
	}
	defer says.Close()
	serving, err := l.start(ctx, l.beyond, server, stdout, io.Discard, "iperf3", "-s", "-1", "-B", to, "--forceflush")
	_ = stdout.Close()
	if err != nil {
		return s, err
	}
	if _, err := says.Read(make([]byte, 1)); err != nil { // when it listens
		return s, errors.Join(err, serving.Wait())
	}
	go func() { _, _ = io.Copy(io.Discard, says) }()
	var report struct {
		End struct {
			Received struct {
				Bytes float64
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	seconds := max(1, int(l.duration.Seconds()+0.5))
	sending, err := l.outputOf(ctx, client, &report, "iperf3", "-c", to, "-J", "-t", strconv.Itoa(seconds), "-l", strconv.Itoa(size))
	if err != nil {
		cancel()
		return s, errors.Join(err, serving.Wait())
	}
	if err := serving.Wait(); err != nil {
		return s, err
	}
	for _, p := range []*os.ProcessState{sending, serving.ProcessState} {
		s.used += p.UserTime() + p.SystemTime()
	}
	s.gbps, s.bytes = report.End.Received.Rate/1e9, report.End.Received.Bytes
	return s, nil
}

// ping returns half of the mean round trip in µs.
func (l *lab) ping(ctx context.Context) (float64, error) {
	var out bytes.Buffer
	cmd, err := l.start(ctx, l.inside, client, &out, io.Discard, "ping", "-q", "-c", "500", "-i", "0.001", hostOf(tunnelAddrs[server]))
	if err != nil {
		return 0, err
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("ping: %w: %s", err, out.Bytes())
	}
	_, figures, _ := strings.Cut(out.String(), "= ")
	parts := strings.Split(figures, "/")
	if len(parts) < 4 {
		return 0, fmt.Errorf("ping printed %q", out.String())
	}
	ms, err := strconv.ParseFloat(parts[1], 64)
	return ms * 1000 / 2, err
}
