package agent

import (
	"slices"
	"time"
)

// Deployment says what kind of signer an identity is of (ID-1).
type Deployment string

// The deployments. Development counts as none outside development mode.
const (
	DeploymentManaged     Deployment = "managed"
	DeploymentSelfHosted  Deployment = "self_hosted"
	DeploymentDevelopment Deployment = "development"
	DeploymentNone        Deployment = "none"
)

// Preference says whether PACT is to be used (PO-2).
type Preference string

// The preferences; none chosen is as disabled.
const (
	PreferPACT   Preference = "prefer-pact"
	RequirePACT  Preference = "require-pact"
	DisabledPACT Preference = "disabled"
)

// settings are the profile's own, of no principal.
type settings struct {
	Head        `json:"-"`
	Enabled     bool
	Preference  Preference
	Development bool
	KeySource   KeySource // where the key is; empty, of an older profile: a file
	KeyAccount  string    // the keyring's name of it: random, so that the folder can move
	KeyCheck    []byte    // sealed, to notice another key
	KeyLost     *KeyLoss  // the last time that it was gone
	By          string    // who changed them last
}

// settingsID is the id of the one settings record.
const settingsID = "settings"

// How an identity proves itself to its signer (SG-3).
const (
	modeDevice     = "device"
	modeCredential = "credential"
)

// identity is what a principal uses to be somebody: a signer, the issuer it
// signs for, and the secret that it accepts. There is at most one.
type identity struct {
	Head       `json:"-"`
	SignerURL  string // without trailing slash (ID-2)
	Issuer     string // an origin (ID-2)
	Deployment Deployment
	Mode       string
	Thumbprint string // of the device key
	SecretID   string
	Registered time.Time
	By         string // who entered it
}

const identityID = "identity"

// binding is the subject of (principal, deployment, issuer) (ID-3); its Key is
// the last two. Head.ID is what grants and conversations refer to.
type binding struct {
	Head    `json:"-"`
	Subject string
	Changes int64 // how often the subject changed (ID-4)
}

// provider is what is known of an origin: the audience that the owner entered,
// if any, and the one last used with it (PR-1, PR-4). Head.Key is the origin. Once
// the entry was removed, what is left is of no surface.
type provider struct {
	Head           `json:"-"`
	Audience       string // the settings entry; empty: the signer's registration counts
	Label          string
	UsedAudience   string
	UsedIssuer     string
	ConfigRevision int64
	By             string // who changed the entry last
}

// providerRemoved is the state of a provider whose entry the owner removed.
const providerRemoved = "removed"

// Business states.
const (
	businessSupported   = "supported"
	businessUnsupported = "unsupported"
)

// business is a card that was fetched. Head.Key is the URL that it was asked
// at. Card is the last card, Security the fingerprint of the last supported one.
type business struct {
	Head         `json:"-"`
	Domain       string // if it was found by domain
	Card         Card
	Metadata     Metadata // zero for an identity card
	Security     string
	CardRevision int64
	Chain        []string // origins passed through (DI-4)
	FinalURL     string
	Fetched      time.Time
	Expires      time.Time
	DiscoveredBy string // who had it looked up first
	FetchedBy    string // who had Card fetched
	// ByOther: the owner never had it looked up on a surface of theirs, so that it may be
	// forgotten while nobody uses it.
	ByOther bool
}

// Grant states (GR-2).
const (
	grantActive       = "active"
	grantExpired      = "expired"
	grantInvalid      = "invalid"
	grantDisconnected = "disconnected"
	grantSuperseded   = "superseded"
)

// grant is what the owner allowed at a business (GR-1). Its tokens are the
// secret of the same id. The lease is that of a refresh (GR-5).
type grant struct {
	Head         `json:"-"`
	Binding      string
	InterfaceURL string
	ASIssuer     string
	Account      string // HMAC of the account (GR-1)
	GrantID      string // as the business calls it
	Scopes       []string
	Reason       string // why it is no longer active
	TokenExpires time.Time
	Expires      time.Time // GR-2
	Ended        time.Time
	EndedBy      string // who disconnected it
}

// stateAt is the state with a lapse taken into account (GR-2).
func (g *grant) stateAt(now time.Time) string {
	if g.State == grantActive && !now.Before(g.Expires) {
		return grantExpired
	}
	return g.State
}

// grantSecret is what a grant's secret holds.
type grantSecret struct {
	AccessToken  string `json:"accessToken"`
	RefreshToken string `json:"refreshToken,omitzero"`
	Subject      string `json:"subject"` // the user's id at the business
	// Unchecked is what a refresh brought, until it is checked (GR-7). The refresh
	// token above is spent then and never sent again (GR-5).
	Unchecked *uncheckedTokens `json:"unchecked,omitzero"`
}

// uncheckedTokens is a token response as it came.
type uncheckedTokens struct {
	Response []byte    `json:"response"`
	Received time.Time `json:"received"`
}

// Authorization states: how a sign-in ended, or that it has not.
const (
	authorizationStarting  = "starting" // its code is being asked for; never shown
	authorizationPending   = "pending"
	authorizationGranted   = "granted"
	authorizationDenied    = "denied"
	authorizationExpired   = "expired"
	authorizationCancelled = "cancelled"
	authorizationFailed    = "failed"
)

// authorization is one sign-in at a business (DA). While it is pending, its
// codes and link are the secret of the same id. The lease is the poller's (DA-4).
type authorization struct {
	Head         `json:"-"`
	Binding      string
	CardRevision int64
	Scopes       []string // asked for (DA-1)
	Needed       []string // without these it is no use (DA-12)
	Purpose      string
	Interval     int64 // microseconds
	Failures     int   // transient, in a row (DA-6)
	NextPoll     time.Time
	Deadline     time.Time
	Came         time.Time // when its code brought what is not checked yet (DA-11)
	Reason       string
	Grant        string
	Settled      time.Time
	Task         string // that asked for it; empty: the owner's command line (RS-4)
	Network      string // name of the profile that it was begun under (RS-5)
	Actor        string // who asked for it
	SettledBy    string // who gave it up
}

// authorizationSecret is what a pending authorization's secret holds.
type authorizationSecret struct {
	DeviceCode              string `json:"deviceCode"`
	UserCode                string `json:"userCode"`
	VerificationURI         string `json:"verificationUri"`
	VerificationURIComplete string `json:"verificationUriComplete,omitzero"`
	// Unchecked is what the code brought, until it is checked (DA-11). The code is spent
	// then and never sent again.
	Unchecked *uncheckedTokens `json:"unchecked,omitzero"`
}

// Conversation states (CV-1).
const (
	conversationDiscovered       = "discovered"
	conversationReady            = "ready"
	conversationAwaitingLocal    = "awaiting_local_authority"
	conversationAwaitingBusiness = "awaiting_business_consent"
	conversationSending          = "sending"
	conversationReplied          = "replied"
	conversationVerified         = "evidence_verified"
	conversationInvalid          = "evidence_invalid"
	conversationDenied           = "denied"
	conversationExpired          = "expired"
	conversationCancelled        = "cancelled"
	conversationUnsupported      = "unsupported"
	conversationUnknown          = "outcome_unknown"
	conversationClosed           = "closed"
)

// conversation is a context with a business. The lease is that of a turn (CV-3).
type conversation struct {
	Head      `json:"-"`
	Binding   string
	ContextID string // minted by the business (CV-5)
	Account   string // whose account the context ran as; empty: none yet
	Task      string // that began it, and may go on with it; empty: the owner's command line
	Reason    string
	Updated   time.Time
	// Authorization is the id of the sign-in that its last turn waited for when it was
	// left.
	Authorization string
}

// Message states (CV-1).
const (
	messagePrepared     = "prepared"
	messageSending      = "sending"
	messageReplied      = "replied"
	messageAuthRequired = "auth_required"
	messageUnknown      = "outcome_unknown"
	messageFailed       = "failed"
	messageCancelled    = "cancelled"
	messageSuperseded   = "superseded"
)

// message is the journal of one turn (CV-2): all of it is on disk before the
// network is used. Head.Business and Head.Conversation say where it belongs, the
// lease whose attempt it is.
type message struct {
	Head             `json:"-"`
	Introduction     bool   // CV-6
	WireID           string // messageId
	Text             string
	Body             string // the exact bytes
	BodyDigest       string // SHA-256 of Body, hex
	Approved         string // digest of what the owner approved; empty: nothing needed approval
	SendURL          string // where it goes
	Authority        string // fingerprint of what it was sent under
	Effect           Effect
	Scopes           []string // required
	ContextID        string
	CardRevision     int64
	ProviderRevision int64
	Grant            string
	GrantScopes      []string // what the grant held when it was sent (EV-4)
	Attempts         int
	Reason           string
	Sent             time.Time // first attempt
	Received         time.Time
	Reply            string
	ReplyID          string
	Receipt          string // id
	Verdict          Verdict
	// Of one whose outcome stays unknown: the business answered a reconcile without
	// its reply, when a reconcile last brought no reply, and when the owner settled the
	// matter elsewhere.
	Refused      bool
	Tried        time.Time
	Acknowledged time.Time
	By           string
	Task         string    // that sent it; empty: the owner's command line
	Network      string    // name of the profile that it was sent under (RS-5)
	Actor        string    // who asked for it
	Approval     string    // id of the approval that it was sent under
	Reconciled   time.Time // when the business was last asked what became of it (CV-14)
	ReconciledBy string    // who had it asked
	// ReconciledConfirmed: they confirmed it themselves, without an approval (AP-5).
	ReconciledConfirmed bool
}

// approval is an operation that takes the owner's word, with all that is needed to
// send exactly it (AP-3). Its lease is of the operation that asked for it, or that
// goes on with it, and runs for as long as that one's turn does (atWork).
type approval struct {
	Head          `json:"-"`
	Request       ApprovalRequest // whole (AP-2)
	WireID        string          // messageId, which the digest covers
	Declared      string          // effect
	Required      []string        // scopes
	Fresh         bool            // its conversation was begun for it
	Reconcile     string          // id of the message that is asked about (CV-14)
	StepUps       int             // CV-13
	Missing       []string        // of the last one
	Task          string          // that asked; empty: the owner's command line
	Network       string          // name of the profile that it was asked under (RS-5)
	Actor         string          // who asked
	Reason        string          // why it is over
	Expires       time.Time       // unless an operation holds it
	Decided       time.Time
	DecidedBy     string
	SentMessage   string // id of the message that went out under it
	Authorization string // id of the sign-in that it waits for
	Next          string // id of the approval that took its place
	// Of one that was approved: how often in a row it could not be sent, and when that is
	// tried again by itself.
	Failures int
	NextTry  time.Time
	// Of one whose message is on its way: what becomes of it if nothing runs of that
	// message. Who approved it may no more, or it was denied.
	TakenBack bool
	Denied    time.Time
	DeniedBy  string
}

// receipt is the evidence of a turn (EV). Head.Key is the digest of its JWS,
// Head.State the verdict. The JWS, what it says, what it was held to and the keys
// are the secret of the same id (EV-9), so that it can be checked again.
type receipt struct {
	Head         `json:"-"`
	Message      string
	Issues       []string
	Time         time.Time
	KeyID        string
	Algorithm    string
	Digest       string
	Sent         time.Time
	Received     time.Time
	Acknowledged time.Time // EV-7
	By           string
	Rechecked    time.Time // when it was last verified again
	RecheckedBy  string
}

// unreadable reports that its signed form was lost with the profile's key.
func (r *receipt) unreadable() bool { return slices.Contains(r.Issues, IssueSecretMissing) }

// receiptSecret is what a receipt's secret holds.
type receiptSecret struct {
	Receipt []byte      `json:"receipt,omitzero"` // pact.receipt as it came
	Keys    []byte      `json:"keys,omitzero"`    // a key set with the key that verified it
	User    string      `json:"user"`
	Want    receiptWant `json:"want"`

	// What the verdict's words and the claims say.
	Problems   []Problem `json:"problems,omitzero"`
	Actions    []Action  `json:"actions,omitzero"`
	ScopesUsed []string  `json:"scopesUsed,omitzero"`
}

// receiptWant is ReceiptWant without what is not data.
type receiptWant struct {
	GrantID, PA, Brand string
	GrantScopes        []string
	SentAt, ReceivedAt time.Time
}

// Block states.
const (
	blockOpen    = "open"
	blockCleared = "cleared"
)

// block holds changes at a business back until the owner has looked at the
// evidence (EV-5, EV-6). Head.Key is the receipt's id, so that nothing but a
// decision on that receipt clears it.
type block struct {
	Head         `json:"-"`
	InterfaceURL string
	Reason       string
	ClearedAt    time.Time
	By           string
}

func (*settings) kind() Kind      { return KindSettings }
func (*identity) kind() Kind      { return KindIdentity }
func (*binding) kind() Kind       { return KindBinding }
func (*provider) kind() Kind      { return KindProvider }
func (*business) kind() Kind      { return KindBusiness }
func (*grant) kind() Kind         { return KindGrant }
func (*authorization) kind() Kind { return KindAuthorization }
func (*conversation) kind() Kind  { return KindConversation }
func (*message) kind() Kind       { return KindMessage }
func (*receipt) kind() Kind       { return KindReceipt }
func (*block) kind() Kind         { return KindBlock }
func (*approval) kind() Kind      { return KindApproval }
