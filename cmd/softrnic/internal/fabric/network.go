package fabric

import (
	network "github.com/softrnic/softrnic/link/fabric"
)

// defaultBuffer is the memory of a switch, in bytes, if the file limits neither that nor queues. No
// window limits what senders outside have under way.
const defaultBuffer = 16 << 20

// LoadNetwork returns the network that a file of softrnic fabric run describes, for packets of up
// to mtu bytes. unused has the names of its tables that are about devices and what they do.
func LoadNetwork(file string, mtu int) (cfg *network.Config, unused []string, err error) {
	c, err := load(file, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range []struct {
		name string
		used bool
	}{{"workload", c.Workloads != nil}, {"failure", c.Failures != nil}, {"rdma", c.RDMA != rdmaConfig{}}} {
		if t.used {
			unused = append(unused, t.name)
		}
	}
	if err := c.complete(); err != nil {
		return nil, nil, err
	}
	if cfg, err = c.fabric(); err != nil {
		return nil, nil, err
	}
	cfg.MTU = mtu
	if s := &cfg.Switch; s.Buffer == 0 && s.Queue == 0 {
		s.Buffer = defaultBuffer
	}
	return cfg, unused, nil
}
