package trace

import (
	"fmt"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
)

// beginsNVMe reports whether a message is a Connect command of NVMe over Fabrics, as the first of a
// queue is. Its data may be in the capsule.
func beginsNVMe(b []byte, n int) bool {
	c, err := nvme.ParseCommand(b)
	p := c.ConnectParams()
	return err == nil && (n == nvme.CommandLen || n == nvme.CommandLen+nvme.ConnectDataLen) && c.Opcode == nvme.Fabrics &&
		c.FabricsType() == nvme.Connect && c.Flags == nvme.FlagSGL && p.RecordFormat == 0 && p.SQSize > 0
}

// nvmeMessage names a command capsule or a response capsule.
func (a *analysis) nvmeMessage(u *upper, m *message) string {
	if m.n == nvme.CompletionLen {
		done, err := nvme.ParseCompletion(m.b)
		if err != nil {
			return ""
		}
		s := fmt.Sprintf("NVMe response CID %d: %v", done.CID, done.Status)
		if c, ok := a.answeredBy(u, m, uint32(done.CID)); ok {
			s += c.answered(a)
		}
		return s
	}
	c, err := nvme.ParseCommand(m.b)
	if err != nil {
		return fmt.Sprintf("no NVMe capsule: %d bytes", m.n)
	}
	if c.Opcode == nvme.Fabrics && c.FabricsType() == nvme.Connect {
		u.queue = int(c.ConnectParams().QID)
	}
	name := fmt.Sprintf("opcode %#02x", uint8(c.Opcode))
	switch {
	case c.Opcode == nvme.Fabrics:
		name = c.FabricsType().String()
	case u.queue >= 0:
		name = c.Opcode.Name(u.queue == 0)
	}
	a.await(u, m, uint32(c.CID), waitingCall{name: name})
	return fmt.Sprintf("NVMe %s CID %d", name, c.CID) + nvmeParams(&c, u.queue, m.b[nvme.CommandLen:])
}

// nvmeParams describes the parameters of a command. inline is the start of the data in its capsule.
func nvmeParams(c *nvme.Command, queue int, inline []byte) (s string) {
	switch {
	case c.Opcode == nvme.Fabrics:
		s = fabricsParams(c, inline)
	case queue == 0:
		s = adminParams(c)
	case queue > 0:
		s = fmt.Sprintf(", NSID %d", c.NSID)
		switch c.Opcode {
		case nvme.Read, nvme.Write, nvme.Compare, nvme.WriteZeroes:
			s += fmt.Sprintf(", SLBA %d, %s", c.SLBA(), plural(c.Blocks(), "block"))
		case nvme.DatasetManagement:
			s += ", " + plural(c.CDW10&0xff+1, "range")
			if c.CDW11&nvme.DSMDeallocate != 0 {
				s += ", deallocate"
			}
		}
	}
	switch g := c.SGL; {
	case g.Length == 0:
	case g.Type == nvme.SGLData && g.Subtype == nvme.SGLOffset:
		s += fmt.Sprintf(", %d bytes in the capsule", g.Length)
	case g.Type == nvme.SGLKeyedData:
		s += fmt.Sprintf(", %d bytes at %#x, key %#x", g.Length, g.Addr, g.Key)
		if g.Subtype == nvme.SGLInvalidate {
			s += " to be invalidated"
		}
	}
	return s
}

var properties = map[nvme.Property]string{nvme.PropertyCAP: "CAP", nvme.PropertyVS: "VS", nvme.PropertyCC: "CC", nvme.PropertyCSTS: "CSTS"}

func propertyName(p nvme.Property) string {
	if name := properties[p]; name != "" {
		return name
	}
	return fmt.Sprintf("%#x", uint32(p))
}

func fabricsParams(c *nvme.Command, inline []byte) string {
	switch c.FabricsType() {
	case nvme.Connect:
		p := c.ConnectParams()
		s := fmt.Sprintf(", queue %d of %d entries", p.QID, int(p.SQSize)+1)
		if p.KeepAlive > 0 {
			s += fmt.Sprintf(", keep alive %v", p.KeepAlive)
		}
		if d, err := nvme.ParseConnectData(inline); err == nil {
			s += fmt.Sprintf(", controller %#x of %q, host %q", d.CNTLID, d.SubsystemNQN, d.HostNQN)
		}
		return s
	case nvme.PropertyGet:
		p, _, _ := c.PropertyParams()
		return ", " + propertyName(p)
	case nvme.PropertySet:
		p, _, v := c.PropertyParams()
		return fmt.Sprintf(", %s %#x", propertyName(p), v)
	case nvme.AuthenticationSend:
		if h, err := auth.ParseHeader(inline); err == nil {
			return fmt.Sprintf(", %v", h.Kind)
		}
	}
	return ""
}

func adminParams(c *nvme.Command) string {
	switch c.Opcode {
	case nvme.Identify:
		return fmt.Sprintf(", CNS %#02x, NSID %d", uint8(c.CNS()), c.NSID)
	case nvme.GetLogPage:
		p := c.LogParams()
		return fmt.Sprintf(", page %#02x, %d bytes from %d on", uint8(p.Page), p.Length, p.Offset)
	case nvme.SetFeatures, nvme.GetFeatures:
		return fmt.Sprintf(", feature %#02x, value %#x", uint8(c.Feature()), c.CDW11)
	case nvme.Abort:
		return fmt.Sprintf(", of CID %d on queue %d", c.CDW10>>16, c.CDW10&0xffff)
	}
	return ""
}
